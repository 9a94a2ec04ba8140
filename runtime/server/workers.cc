#include "runtime/server/workers.h"

#include <optional>

#include "runtime/process/process.h"

namespace lockstep {

std::string Workers::Name(int rank) const {
  const Worker& worker = (*this)[rank];
  std::string name = "worker " + std::to_string(rank);
  if (worker.process != 0) name += " (process " + std::to_string(worker.process) + " on host " + worker.host + ")";
  return name;
}

std::string Workers::Describe(int rank) const {
  const Worker& worker = (*this)[rank];
  switch (worker.life) {
    case Worker::Life::kExpected: return Name(rank) + ", which has not arrived";
    case Worker::Life::kLeft: return Name(rank) + ", which has left";
    case Worker::Life::kDied: return Name(rank) + ", which died";
    case Worker::Life::kHere: break;
  }
  const std::optional<ProcessFacts> facts =
      worker.is_on_this_host ? FactsOfProcess(worker.process) : std::optional<ProcessFacts>();
  if (facts && facts->stopped) return Name(rank) + ", which is stopped by a signal";
  return Name(rank) + ", which is connected and has not sent it";
}

int Workers::MissingForever() const {
  if (tolerates_loss) return -1;
  for (int rank = 0; rank < size(); ++rank) {
    if (!(*this)[rank].counts()) return rank;
  }
  return -1;
}

}  // namespace lockstep
