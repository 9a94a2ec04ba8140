// A communicator's collectives over the caller's arrays, for the parts of the package that are written in Python. They
// are not public, because calls that are started and waited for one by one are not planned to overlap.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/placement.h"
#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/operand.h"
#include "python_bindings/released_gil.h"
#include "runtime/communicator.h"
#include "runtime/exclusive_use.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

struct Operands {
  Operand input, output;
};

// The arrays of one communicator's collectives in flight. An attribute of the communicator. If it is destroyed while
// collectives are in flight, their arrays are never freed: peers that are threads may write to them as long as the
// communicator exists, and the garbage collector may clear the communicator's attributes earlier.
class Flights {
 public:
  Flights() : operands_(std::make_unique<Map>()) {}
  ~Flights() {
    if (!operands_->empty()) static_cast<void>(operands_.release());
  }
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  void Add(uint64_t ticket, Operands operands) { operands_->emplace(ticket, std::move(operands)); }
  void Remove(uint64_t ticket) { operands_->erase(ticket); }
  bool Has(uint64_t ticket) const { return operands_->contains(ticket); }

 private:
  using Map = std::map<uint64_t, Operands>;
  std::unique_ptr<Map> operands_;
};

constexpr const char* kFlights = "_flights";

Flights& FlightsOf(nb::handle world) {
  if (!nb::hasattr(world, kFlights)) world.attr(kFlights) = nb::cast(new Flights);
  return nb::cast<Flights&>(world.attr(kFlights));
}

// The common part of the functions below: checked arguments, and a name of the call for messages.
class Call {
 public:
  Call(const char* op, nb::handle world, nb::handle input, nb::handle output, nb::handle dtype, nb::handle label)
      : op_(op),
        world_(world),
        communicator_(nb::cast<Communicator&>(world)),
        label_(TextOf(label, What("label"))),
        operands_{Operand(input, false, What("input")), Operand(output, true, What("output"))} {
    const std::string name = TextOf(dtype, What("dtype"));
    const std::optional<DType> found = DTypeFromName(name);
    if (!found)
      ThrowIfError(InvalidArgument() << What("dtype") << " is \"" << name << "\", expected one such as \"f32\"");
    dtype_ = *found;
    inputs_ = Count(operands_.input, "input");
    outputs_ = Count(operands_.output, "output");
  }

  Communicator& communicator() const { return communicator_; }
  const void* input() const { return operands_.input.data(); }
  void* output() const { return operands_.output.data(); }
  DType dtype() const { return dtype_; }
  Communicator::Call engine_call() const { return {.label = label_}; }
  int size() const { return communicator_.size(); }
  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }

  // Throws unless the output has `expected` elements.
  void ExpectOutputs(int64_t expected) const {
    if (outputs_ == expected) return;
    ThrowIfError(InvalidArgument() << op_ << " \"" << label_ << "\": input has " << inputs_ << " elements and output "
                                   << outputs_ << ", expected " << expected << " in output, of " << size() << " ranks");
  }
  // Returns inputs() / size(). Throws if inputs() is not a multiple of size().
  int64_t Share() const {
    if (inputs_ % size() == 0) return inputs_ / size();
    ThrowIfError(InvalidArgument() << op_ << " \"" << label_ << "\": input has " << inputs_
                                   << " elements, expected a multiple of " << size() << ", the number of ranks");
    return 0;
  }
  ReduceKind Kind(nb::handle kind) const {
    const std::string name = TextOf(kind, What("kind"));
    const std::optional<ReduceKind> found = ReduceKindFromName(name);
    if (!found) {
      ThrowIfError(InvalidArgument() << What("kind") << " is \"" << name
                                     << "\", expected \"sum\", \"mean\", \"min\", \"max\" or \"prod\"");
    }
    return *found;
  }

  // Calls start(), without the GIL, and returns its ticket. Keeps the arrays until the ticket has been waited for.
  template <typename Function>
  uint64_t Start(Function start) {
    Flights& flights = FlightsOf(world_);
    const uint64_t ticket = [&] {
      ReleasedGil released;
      const ExclusiveUse use(communicator_.in_use());
      if (!use.ok()) ThrowIfError(use.Error(std::string(op_) + ": the communicator"));
      return ValueOrThrow<Communicator::Ticket>(start()).id;
    }();
    flights.Add(ticket, std::move(operands_));
    return ticket;
  }

 private:
  std::string What(const char* argument) const { return std::string(op_) + ": " + argument; }
  int64_t Count(const Operand& operand, const char* argument) const {
    const auto size = static_cast<int64_t>(SizeOf(dtype_));
    if (static_cast<int64_t>(operand.size()) % size != 0) {
      ThrowIfError(InvalidArgument() << What(argument) << " has " << operand.size() << " bytes, expected whole "
                                     << dtype_ << " elements of " << size << " bytes");
    }
    return static_cast<int64_t>(operand.size()) / size;
  }

  const char* op_;
  nb::handle world_;
  Communicator& communicator_;
  std::string label_;
  Operands operands_;
  DType dtype_ = DType::kF32;
  int64_t inputs_ = 0, outputs_ = 0;  // elements
};

uint64_t StartAllReduce(nb::handle world, nb::handle input, nb::handle output, nb::handle dtype, nb::handle kind,
                        nb::handle label) {
  Call call("all_reduce", world, input, output, dtype, label);
  const ReduceKind reduce = call.Kind(kind);
  call.ExpectOutputs(call.inputs());
  return call.Start([&] {
    return call.communicator().Start(Collective::AllReduce(call.inputs(), call.dtype(), reduce), call.input(),
                                     call.output(), call.engine_call());
  });
}

uint64_t StartBroadcast(nb::handle world, nb::handle input, nb::handle output, nb::handle dtype, int root,
                        nb::handle label) {
  Call call("broadcast", world, input, output, dtype, label);
  call.ExpectOutputs(call.inputs());
  return call.Start([&] {
    return call.communicator().Start(Collective::Broadcast(call.inputs(), call.dtype(), root), call.input(),
                                     call.output(), call.engine_call());
  });
}

uint64_t StartGather(nb::handle world, nb::handle input, nb::handle output, nb::handle dtype, int root,
                     nb::handle label) {
  Call call("gather", world, input, output, dtype, label);
  call.ExpectOutputs(call.inputs() * call.size());
  return call.Start([&] {
    return call.communicator().Start(Collective::Gather(call.inputs(), call.dtype(), root), call.input(), call.output(),
                                     call.engine_call());
  });
}

uint64_t StartScatter(nb::handle world, nb::handle input, nb::handle output, nb::handle dtype, int root,
                      nb::handle label) {
  Call call("scatter", world, input, output, dtype, label);
  const int64_t count = call.Share();
  call.ExpectOutputs(count);
  return call.Start([&] {
    return call.communicator().Start(Collective::Scatter(count, call.dtype(), root), call.input(), call.output(),
                                     call.engine_call());
  });
}

uint64_t StartAllGather(nb::handle world, nb::handle input, nb::handle output, nb::handle dtype, nb::handle label) {
  Call call("all_gather", world, input, output, dtype, label);
  call.ExpectOutputs(call.inputs() * call.size());
  const int64_t count = call.inputs();
  return call.Start([&] {
    return call.communicator().Start(Collective::AllGather({&count, 1}, call.dtype()), call.input(), call.output(),
                                     call.engine_call());
  });
}

uint64_t StartAllToAll(nb::handle world, nb::handle input, nb::handle output, nb::handle dtype, nb::handle label) {
  Call call("all_to_all", world, input, output, dtype, label);
  const int64_t count = call.Share();
  call.ExpectOutputs(call.inputs());
  return call.Start([&] {
    return call.communicator().Start(Collective::AllToAll(count, call.dtype()), call.input(), call.output(),
                                     call.engine_call());
  });
}

uint64_t StartReduceScatter(nb::handle world, nb::handle input, nb::handle output, nb::handle dtype, nb::handle kind,
                            nb::handle label) {
  Call call("reduce_scatter", world, input, output, dtype, label);
  const ReduceKind reduce = call.Kind(kind);
  const int64_t count = call.Share();
  call.ExpectOutputs(count);
  return call.Start([&] {
    return call.communicator().Start(Collective::ReduceScatter({&count, 1}, call.dtype(), reduce), call.input(),
                                     call.output(), call.engine_call());
  });
}

void Wait(nb::handle world, uint64_t ticket) {
  auto& communicator = nb::cast<Communicator&>(world);
  Flights& flights = FlightsOf(world);
  if (!flights.Has(ticket)) {
    ThrowIfError(InvalidArgument() << "wait: " << ticket
                                   << " is not a collective in flight, or has already been waited for");
  }
  const absl::Status status = [&] {
    ReleasedGil released;
    const ExclusiveUse use(communicator.in_use());
    if (!use.ok()) ThrowIfError(use.Error("wait: the communicator"));
    return communicator.Wait({ticket});
  }();
  // The collective has ended or the communicator has failed, so the arrays are not used any more.
  flights.Remove(ticket);
  ThrowIfError(status);
}

nb::object Allocate(Communicator& world, int64_t bytes, nb::handle label) {
  const std::string name = TextOf(label, "allocate: label");
  if (bytes < 0) ThrowIfError(InvalidArgument() << "allocate: bytes is " << bytes << ", expected at least 0");
  if (!world.is_host()) ThrowIfError(FailedPrecondition() << "allocate: the communicator's memory is a device's");
  std::unique_ptr<RegisteredMemory> memory;
  {
    ReleasedGil released;
    const ExclusiveUse use(world.in_use());
    if (!use.ok()) ThrowIfError(use.Error("allocate: the communicator"));
    memory = ValueOrThrow(world.Allocate(static_cast<size_t>(bytes), name));
  }
  const size_t size = static_cast<size_t>(bytes);
  std::byte* data = memory->data();
  nb::capsule owner(memory.release(), [](void* p) noexcept { delete static_cast<RegisteredMemory*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(data, 1, &size, owner));
}

nb::object Split(nb::handle world, int color, nb::handle label) {
  auto& communicator = nb::cast<Communicator&>(world);
  const std::string name = TextOf(label, "split: label");
  std::unique_ptr<Communicator> part;
  {
    ReleasedGil released;
    const ExclusiveUse use(communicator.in_use());
    if (!use.ok()) ThrowIfError(use.Error("split: the communicator"));
    part = ValueOrThrow(communicator.Split(color, name));
  }
  nb::object result = nb::cast(std::move(part));
  result.attr("_world") = world;  // keeps `world` alive, so that failures reach all ranks
  if (nb::hasattr(world, "_in_rank_order")) result.attr("_in_rank_order") = world.attr("_in_rank_order");
  return result;
}

}  // namespace

void BindCollectives(nb::module_& module) {
  nb::class_<Flights>(module, "_Flights", "The arrays of a communicator's collectives in flight.");
  module.def("_allocate", &Allocate, "world"_a, "bytes"_a, "label"_a.none(),
             "uint8[bytes] of registered memory, zero at first. Collective. Each rank has its own size.",
             nb::sig("def _allocate(world: Communicator, bytes: int, label: str) -> Any"));
  module.def("_split", &Split, "world"_a, "color"_a, "label"_a.none(),
             "Returns a communicator of the ranks that pass the same color, at least 0. Collective.",
             nb::sig("def _split(world: Communicator, color: int, label: str) -> Communicator"));
  module.def(
      "_start_all_reduce", &StartAllReduce, "world"_a, "input"_a.none(), "output"_a.none(), "dtype"_a.none(),
      "kind"_a.none(), "label"_a.none(),
      "Starts an all-reduce, and returns its ticket for _wait. The arrays are in row-major order, with equal numbers\n"
      "of elements. `input` may be `output`. Nobody else may use them between start and wait.\n\n"
      "Args:\n"
      "  dtype: \"f32\", \"bf16\", ...: of the elements, which may differ from the array's dtype; only its bytes\n"
      "    count.\n"
      "  kind: \"sum\", \"mean\", \"min\", \"max\", \"prod\".\n"
      "  label: of the call in messages; equal on all ranks.",
      nb::sig("def _start_all_reduce(world: Communicator, input: Any, output: Any, dtype: str, kind: str, label: "
              "str) -> int"));
  module.def("_start_broadcast", &StartBroadcast, "world"_a, "input"_a.none(), "output"_a.none(), "dtype"_a.none(),
             "root"_a, "label"_a.none(), "Starts a broadcast. Only rank root's input is read.",
             nb::sig("def _start_broadcast(world: Communicator, input: Any, output: Any, dtype: str, root: int, label: "
                     "str) -> int"));
  module.def(
      "_start_gather", &StartGather, "world"_a, "input"_a.none(), "output"_a.none(), "dtype"_a.none(), "root"_a,
      "label"_a.none(),
      "Starts a gather. The output, which is zero on the other ranks than root, has world.size times the input's\n"
      "elements.",
      nb::sig("def _start_gather(world: Communicator, input: Any, output: Any, dtype: str, root: int, label: "
              "str) -> int"));
  module.def("_start_scatter", &StartScatter, "world"_a, "input"_a.none(), "output"_a.none(), "dtype"_a.none(),
             "root"_a, "label"_a.none(),
             "Starts a scatter. Part r of root's input goes to rank r. The inputs, of which only root's is read, have\n"
             "world.size times the output's elements.",
             nb::sig("def _start_scatter(world: Communicator, input: Any, output: Any, dtype: str, root: int, label: "
                     "str) -> int"));
  module.def("_start_all_gather", &StartAllGather, "world"_a, "input"_a.none(), "output"_a.none(), "dtype"_a.none(),
             "label"_a.none(), "Starts an all-gather. The output has world.size times the input's elements.",
             nb::sig("def _start_all_gather(world: Communicator, input: Any, output: Any, dtype: str, label: str) -> "
                     "int"));
  module.def("_start_all_to_all", &StartAllToAll, "world"_a, "input"_a.none(), "output"_a.none(), "dtype"_a.none(),
             "label"_a.none(), "Starts an all-to-all. Part r of the input goes to rank r, as part world.rank.",
             nb::sig("def _start_all_to_all(world: Communicator, input: Any, output: Any, dtype: str, label: str) -> "
                     "int"));
  module.def("_start_reduce_scatter", &StartReduceScatter, "world"_a, "input"_a.none(), "output"_a.none(),
             "dtype"_a.none(), "kind"_a.none(), "label"_a.none(),
             "Starts a reduce-scatter. The input has world.size times the output's elements.",
             nb::sig("def _start_reduce_scatter(world: Communicator, input: Any, output: Any, dtype: str, kind: str, "
                     "label: str) -> int"));
  module.def("_wait", &Wait, "world"_a, "ticket"_a,
             "Waits until the collective is complete. Call once for each ticket, in any order.");
}

}  // namespace lockstep::python
