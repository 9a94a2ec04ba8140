#include "runtime/record/record.h"

#include <algorithm>
#include <charconv>
#include <tuple>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view kHead = "program\t";
constexpr int32_t kMostRanks = 1 << 20;  // of a world; tables have a line for each

std::string WithoutSeparators(std::string text) {
  for (char& c : text) {
    if (c == '\t' || c == '\n') c = ' ';
  }
  return text;
}

// Returns the text up to the separator, and removes both from `rest`.
std::string_view Take(std::string_view* rest, char separator) {
  const size_t end = std::min(rest->find(separator), rest->size());
  const std::string_view taken = rest->substr(0, end);
  rest->remove_prefix(std::min(end + 1, rest->size()));
  return taken;
}

int64_t Number(std::string_view text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

std::string RecordedProgram::Describe(int32_t step) const {
  if (step == StepEvent::kAllSteps) return "all steps at once";
  const std::string place = "step " + std::to_string(step);
  if (step < 0 || static_cast<size_t>(step) >= steps.size()) return place;
  const RecordedStep& named = steps[static_cast<size_t>(step)];
  std::string text = place + " " + named.name;
  if (!named.label.empty()) text += " " + named.label;
  if (!named.source.empty()) text += " (" + named.source + ")";
  return text;
}

std::string ToText(const RecordedProgram& program) {
  std::string text = std::string(kHead) + std::to_string(program.index) + "\t" + std::to_string(program.steps.size()) +
                     "\t" + WithoutSeparators(program.name) + "\t" + WithoutSeparators(program.part) + "\n";
  for (const RecordedStep& step : program.steps) {
    text += std::to_string(static_cast<int>(step.kind)) + "\t" + WithoutSeparators(step.name) + "\t" +
            WithoutSeparators(step.source) + "\t" + WithoutSeparators(step.label) + "\t" + std::to_string(step.bytes) +
            "\t" + (step.is_urgent ? "1" : "0") + "\n";
  }
  return text;
}

std::vector<RecordedProgram> ParsePrograms(std::string_view text) {
  std::vector<RecordedProgram> programs;
  while (text.substr(0, kHead.size()) == kHead && text.find('\n') != std::string_view::npos) {
    std::string_view line = Take(&text, '\n').substr(kHead.size());
    RecordedProgram program;
    program.index = static_cast<uint16_t>(Number(Take(&line, '\t')));
    const int64_t steps = Number(Take(&line, '\t'));
    program.name = Take(&line, '\t');
    program.part = line;
    for (int64_t i = 0; i < steps; ++i) {
      if (text.find('\n') == std::string_view::npos) return programs;  // the rest is not written yet, or the rank died
      line = Take(&text, '\n');
      RecordedStep& step = program.steps.emplace_back();
      step.kind = static_cast<RecordedStep::Kind>(Number(Take(&line, '\t')));
      step.name = Take(&line, '\t');
      step.source = Take(&line, '\t');
      step.label = Take(&line, '\t');
      step.bytes = Number(Take(&line, '\t'));
      step.is_urgent = Number(line) != 0;
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

namespace {

// Processes that share worlds count them equally. A world of a single rank belongs to its process.
auto WorldOf(const RecordedRank& rank) {
  return std::tuple(std::string_view(rank.transport), rank.world, rank.size == 1 ? rank.process : 0);
}

}  // namespace

bool IsSameWorld(const RecordedRank& a, const RecordedRank& b) { return WorldOf(a) == WorldOf(b); }

bool IsBefore(const RecordedRank& a, const RecordedRank& b) {
  return std::pair(WorldOf(a), a.rank) < std::pair(WorldOf(b), b.rank);
}

bool MakeValid(RecordedRank& rank) {
  rank.host[sizeof(rank.host) - 1] = rank.transport[sizeof(rank.transport) - 1] = '\0';
  return 0 <= rank.rank && rank.rank < rank.size && rank.size <= kMostRanks;
}

void MakeValid(std::vector<TransferEvent>& events) {
  for (TransferEvent& event : events) event.label[TransferEvent::kLabelBytes - 1] = '\0';
}

const RecordedProgram* RankRecord::program(uint16_t index) const {
  for (const RecordedProgram& program : programs) {
    if (program.index == index) return &program;
  }
  return nullptr;
}

}  // namespace lockstep
