#include "passes/stages/turns.h"

#include <algorithm>

#include "core/check.h"

namespace lockstep::passes {

std::ostream& operator<<(std::ostream& out, const Turn& turn) {
  return out << (turn.is_backward ? 'B' : 'F') << turn.micro_batch;
}

std::vector<Turn> TurnsOfStage(int64_t stage, int64_t stages, int64_t micro_batches) {
  LOCKSTEP_CHECK(stage >= 0 && stage < stages && micro_batches >= 1) << stage << " of " << stages;
  const int64_t ahead = std::min(stages - 1 - stage, micro_batches);
  std::vector<Turn> turns;
  for (int64_t forward = 0; forward < ahead; ++forward) turns.push_back({false, forward});
  for (int64_t backward = 0; backward < micro_batches; ++backward) {
    const int64_t forward = ahead + backward;
    if (forward < micro_batches) turns.push_back({false, forward});
    turns.push_back({true, backward});
  }
  return turns;
}

std::vector<TurnOfStage> TurnsOfAllStages(int64_t stages, int64_t micro_batches) {
  std::vector<std::vector<Turn>> turns;
  for (int64_t stage = 0; stage < stages; ++stage) turns.push_back(TurnsOfStage(stage, stages, micro_batches));
  // The number of finished turns of each stage: all, forward and backward. Micro-batches pass in their order.
  std::vector<int64_t> next(turns.size()), forward(turns.size()), backward(turns.size());
  std::vector<TurnOfStage> all;
  for (int64_t time = 0; all.size() < turns.size() * static_cast<size_t>(2 * micro_batches); ++time) {
    const std::vector<int64_t> forward_before = forward, backward_before = backward;
    bool any = false;
    for (size_t stage = 0; stage < turns.size(); ++stage) {
      if (next[stage] == 2 * micro_batches) continue;
      const Turn turn = turns[stage][static_cast<size_t>(next[stage])];
      const int64_t needed = turn.micro_batch + 1;
      const bool may_begin = turn.is_backward ? forward_before[stage] >= needed &&
                                                    (stage + 1 == turns.size() || backward_before[stage + 1] >= needed)
                                              : stage == 0 || forward_before[stage - 1] >= needed;
      if (!may_begin) continue;
      ++next[stage];
      ++(turn.is_backward ? backward : forward)[stage];
      all.push_back({static_cast<int64_t>(stage), turn, time});
      any = true;
    }
    LOCKSTEP_CHECK(any) << "each of " << stages << " stages waits for another one, at " << time;
  }
  return all;
}

}  // namespace lockstep::passes
