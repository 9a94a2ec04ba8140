#include "runtime/execution/part_order.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/execution/agreement.h"

namespace lockstep {
namespace {

// The parts between which data moves.
constexpr int kAllParts = -1;  // along their axis
constexpr int kOnePart = -2;   // along other axes: between ranks with the same part

struct Event {
  bool is_start = false;
  int id = 0;              // shared by a start and its wait
  int channel = kOnePart;  // for a start: a lane, or one of the above
  std::string_view call;   // the description of the started call
};

std::string_view TakeWord(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

int TakeNumber(std::string_view& line) {
  const std::string_view word = TakeWord(line);
  int number = 0;
  std::from_chars(word.data(), word.data() + word.size(), number);
  return number;
}

std::vector<Event> EventsOf(std::string_view text) {
  std::vector<Event> events;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    Event event;
    event.is_start = TakeWord(line) == "start";
    event.id = TakeNumber(line);
    if (event.is_start) event.channel = TakeNumber(line);
    event.call = line;
    events.push_back(event);
  }
  return events;
}

class Parts {
 public:
  Parts(const std::vector<std::string>& texts, const std::vector<Lane>& lanes) : lanes_(lanes) {
    for (const std::string& text : texts) parts_.push_back({EventsOf(text), 0, {}, {}});
    for (size_t part = 0; part < parts_.size(); ++part) {
      for (const Event& event : parts_[part].events) {
        if (event.is_start) calls_[{event.channel, part}].push_back(event.call);
      }
    }
  }

  // Checks that both ends of each lane, and all parts on their axis, start the same calls in the same order.
  absl::Status CheckCalls() const {
    for (int lane = 0; lane < static_cast<int>(lanes_.size()); ++lane) {
      const auto source = static_cast<size_t>(lanes_[static_cast<size_t>(lane)].source);
      const auto target = static_cast<size_t>(lanes_[static_cast<size_t>(lane)].target);
      RETURN_IF_ERROR(CheckSame(lane, lanes_[static_cast<size_t>(lane)].ToString(), source, target));
    }
    for (size_t part = 1; part < parts_.size(); ++part) RETURN_IF_ERROR(CheckSame(kAllParts, "all parts", 0, part));
    return absl::OkStatus();
  }

  // Executes all parts, each as far as possible.
  absl::Status CheckProgress() {
    for (bool any = true; std::exchange(any, false);) {
      for (size_t part = 0; part < parts_.size(); ++part) any = Advance(part) || any;
    }
    std::string waiting;
    for (size_t part = 0; part < parts_.size(); ++part) {
      const Part& stuck = parts_[part];
      if (stuck.next == stuck.events.size()) continue;
      waiting += (waiting.empty() ? "" : "; ") + std::string("part ") + std::to_string(part) + " waits for " +
                 std::string(stuck.started.at(stuck.events[stuck.next].id).call);
    }
    if (waiting.empty()) return absl::OkStatus();
    return FailedPrecondition() << "the parts of the program wait for each other for ever: " << waiting;
  }

 private:
  struct Started {
    int channel = kOnePart;
    size_t number = 0;  // on its channel, from 1
    std::string_view call;
  };
  struct Part {
    std::vector<Event> events;
    size_t next = 0;                   // the next event
    std::map<int, Started> started;    // by id
    std::map<int, size_t> on_channel;  // the number of started calls
  };

  const std::vector<std::string_view>& CallsOf(int channel, size_t part) const {
    static const std::vector<std::string_view> none;
    const auto found = calls_.find({channel, part});
    return found == calls_.end() ? none : found->second;
  }

  absl::Status CheckSame(int channel, const std::string& name, size_t a, size_t b) const {
    const auto &first = CallsOf(channel, a), &second = CallsOf(channel, b);
    const auto size = std::max(first.size(), second.size());
    for (size_t i = 0; i < size; ++i) {
      const auto call = [i](const auto& calls) { return i < calls.size() ? calls[i] : "(nothing)"; };
      if (call(first) == call(second)) continue;
      return FailedPrecondition() << "the parts of the program differ in transfer " << i << " of " << name
                                  << ":\n  part " << a << ": " << call(first) << "\n  part " << b << ": "
                                  << call(second);
    }
    return absl::OkStatus();
  }

  bool IsOver(const Started& started) {
    if (started.channel == kOnePart) return true;
    const auto has = [&](size_t part) { return parts_[part].on_channel[started.channel] >= started.number; };
    if (started.channel != kAllParts) {
      const Lane& lane = lanes_[static_cast<size_t>(started.channel)];
      return has(static_cast<size_t>(lane.source)) && has(static_cast<size_t>(lane.target));
    }
    for (size_t part = 0; part < parts_.size(); ++part) {
      if (!has(part)) return false;
    }
    return true;
  }

  bool Advance(size_t number) {
    Part& part = parts_[number];
    const size_t before = part.next;
    for (; part.next < part.events.size(); ++part.next) {
      const Event& event = part.events[part.next];
      if (event.is_start) {
        part.started[event.id] = {event.channel, ++part.on_channel[event.channel], event.call};
      } else if (!IsOver(part.started[event.id])) {
        break;
      }
    }
    return part.next > before;
  }

  const std::vector<Lane>& lanes_;
  std::vector<Part> parts_;
  std::map<std::pair<int, size_t>, std::vector<std::string_view>> calls_;  // by channel and part
};

}  // namespace

std::string PartOrder(const Executable& executable) {
  std::string text;
  const auto axes = static_cast<int>(executable.mesh.axes().size());
  for (const std::unique_ptr<Step>& step : executable.steps) {
    const StepInfo& info = step->info();
    if (!info.collective) continue;
    const CollectiveInfo& collective = *info.collective;
    const bool is_start = info.kind == StepKind::kStart;
    text += (is_start ? "start " : "wait ") + std::to_string(collective.id);
    if (is_start) {
      int channel = collective.axis == executable.parts_along ? kAllParts : kOnePart;
      if (collective.is_transfer) channel = collective.mesh_axis - axes;
      text += " " + std::to_string(channel) + " " + collective.ToString();
    }
    text += "\n";
  }
  return text;
}

absl::Status CheckParts(const std::vector<std::string>& parts, const std::vector<Lane>& lanes) {
  Parts all(parts, lanes);
  RETURN_IF_ERROR(all.CheckCalls());
  return all.CheckProgress();
}

absl::Status AgreeOnParts(Communicator& world, const Executable& executable) {
  const std::string& axis = executable.parts_along;
  ASSIGN_OR_RETURN(const std::vector<std::string> orders,
                   world.AllGatherBytes(PartOrder(executable), "parts of @" + executable.name));
  std::map<int64_t, size_t> first_of;  // by part: its first rank
  std::vector<std::string> parts;
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    const int64_t part = executable.mesh.Coordinate(static_cast<int64_t>(rank), axis);
    const auto [first, is_new] = first_of.emplace(part, rank);
    if (!is_new && orders[rank] != orders[first->second]) {
      return FailedPrecondition() << "ranks " << first->second << " and " << rank << " of @" << executable.name
                                  << " have the same part of it, " << axis << " " << part
                                  << ", and communicate in different orders";
    }
  }
  for (const auto& [part, rank] : first_of) parts.push_back(orders[rank]);
  return Annotate(CheckParts(parts, executable.lanes), "@" + executable.name + ", parts along " + axis);
}

}  // namespace lockstep
