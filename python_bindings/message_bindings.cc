// Worlds that Python introduces, and messages between two ranks, for lockstep.torch_distributed.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/operand.h"
#include "python_bindings/released_gil.h"
#include "runtime/comm/messages.h"
#include "runtime/comm/rank_communicator.h"
#include "runtime/comm/world/world.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// An introduction by a function of Python, which returns the bytes of all ranks, as a list by rank.
class CalledIntroduction final : public Introduction {
 public:
  CalledIntroduction(int rank, int size, nb::handle gather) : rank_(rank), size_(size), gather_(gather) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::StatusOr<std::vector<std::byte>> Gather(std::span<const std::byte> mine) override {
    const nb::gil_scoped_acquire acquired;
    std::vector<std::byte> all;
    try {
      const auto gathered = nb::cast<nb::list>(gather_(nb::bytes(mine.data(), mine.size())));
      for (nb::handle each : gathered) {
        const auto bytes = nb::cast<nb::bytes>(each);
        const auto* const data = static_cast<const std::byte*>(bytes.data());
        all.insert(all.end(), data, data + bytes.size());
      }
    } catch (const nb::python_error& error) {
      return ErrorStream(absl::StatusCode::kUnavailable) << nb::cast<std::string>(nb::str(error.value()));
    }
    if (all.size() != mine.size() * static_cast<size_t>(size_))
      return FailedPrecondition() << "the ranks that meet run different versions of Lockstep";
    return all;
  }

 private:
  const int rank_, size_;
  const nb::handle gather_;
};

std::unique_ptr<Communicator> Meet(int rank, int size, nb::handle gather, double timeout,
                                   const std::string& transport) {
  CalledIntroduction introduction(rank, size, gather);
  const WorldOptions options{.communicator = {.timeout = absl::Seconds(timeout)}};
  const ReleasedGil released;
  return ValueOrThrow(CreateWorld(introduction, options, {.transport = transport}));
}

// The messages of one rank, with the arrays to which they are received.
class BoundMessages {
 public:
  explicit BoundMessages(std::unique_ptr<Messages> messages) : messages_(std::move(messages)) {}

  uint64_t Send(int to, int64_t tag, nb::handle array) {
    const Operand operand(array, false, "send: the array");
    return messages_->Send(to, tag, {static_cast<const std::byte*>(operand.data()), operand.size()}).id;
  }

  uint64_t Receive(int from, int64_t tag, nb::handle array) {
    Operand operand(array, true, "receive: the array");
    const uint64_t id = messages_->Receive(from, tag, {static_cast<std::byte*>(operand.data()), operand.size()}).id;
    operands_.emplace(id, std::move(operand));
    return id;
  }

  std::optional<int> Wait(uint64_t ticket, double limit) {
    absl::StatusOr<int> other = [&] {
      const ReleasedGil released;
      return messages_->Wait({ticket}, absl::Seconds(limit));
    }();
    if (absl::IsDeadlineExceeded(other.status())) return std::nullopt;
    operands_.erase(ticket);
    return ValueOrThrow(std::move(other));
  }

 private:
  std::map<uint64_t, Operand> operands_;  // destroyed after the messages, which may write to them
  std::unique_ptr<Messages> messages_;
};

std::unique_ptr<BoundMessages> MessagesOf(Communicator& world) {
  const ReleasedGil released;
  return std::make_unique<BoundMessages>(ValueOrThrow(Messages::Create(world)));
}

}  // namespace

void BindMessages(nb::module_& module) {
  module.def("_meet", &Meet, "rank"_a, "size"_a, "gather"_a, "timeout"_a, "transport"_a,
             "Returns the communicator of ranks that a function introduces: gather(bytes) returns a list of the bytes\n"
             "of all ranks, by rank. Collective.",
             nb::sig("def _meet(rank: int, size: int, gather: Any, timeout: float, transport: str) -> Communicator"));
  module.def(
      "_set_timeout",
      [](Communicator& world, double timeout) {
        auto* const ranks = dynamic_cast<RankCommunicator*>(&world);
        if (ranks == nullptr) ThrowIfError(InvalidArgument() << "_set_timeout: the communicator is not of `_meet`");
        ranks->SetTimeout(absl::Seconds(timeout));
      },
      "world"_a, "timeout"_a,
      "Replaces the timeout, in seconds, of a communicator of `_meet` for waits from now on. Any thread.",
      nb::sig("def _set_timeout(world: Communicator, timeout: float) -> None"));
  module.def(
      "_check_peers",
      [](Communicator& world) {
        const absl::Status failure = [&] {
          const ReleasedGil released;
          return world.CheckPeers();
        }();
        ThrowIfError(failure);
      },
      "world"_a, "Raises the Error with which the world has failed, if it has. Any thread, at any time.",
      nb::sig("def _check_peers(world: Communicator) -> None"));
  nb::class_<BoundMessages>(module, "_Messages",
                            "Messages between two ranks, besides the collectives. Any thread may call.")
      .def(nb::new_(&MessagesOf), "world"_a, "Collective over the ranks of `world`.")
      .def("send", &BoundMessages::Send, "to"_a, "tag"_a, "array"_a,
           "Starts to send a copy of an array's bytes, and returns a ticket.",
           nb::sig("def send(self, to: int, tag: int, array: Any) -> int"))
      .def("receive", &BoundMessages::Receive, "source"_a, "tag"_a, "array"_a,
           "Starts to receive a message of the array's size from rank `source`, or from any rank (-1), and returns a\n"
           "ticket.",
           nb::sig("def receive(self, source: int, tag: int, array: Any) -> int"))
      .def("wait", &BoundMessages::Wait, "ticket"_a, "limit"_a,
           "Returns the other rank of a message that is complete, or None after `limit` seconds. Raises an Error if\n"
           "the other rank has left, or sent another number of bytes.",
           nb::sig("def wait(self, ticket: int, limit: float) -> int | None"));
}

}  // namespace lockstep::python
