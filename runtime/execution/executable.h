// A compiled program: a linear list of steps over a table of buffers. Backends make executables, an Executor runs them.
// It can be printed as text for debugging at run time:
//
//   executable @step backend=cpu ranks=4 threads=2 arena=438KiB states=31KiB buckets=31KiB certificate=9f3c1a72
//     [0] onednn.matmul         reads %x, %dz in arena+8192  writes %dw in buckets data+0  // onnx:/fc1/MatMul
//     [1] all_reduce.start      bucket 0 (%dw)
//     [2] all_reduce.wait       bucket 0 (%dw)
//     [3] llvm.sgd              reads %w, %g in buckets data+0  writes %w.next in state w
//
// An executable contains no addresses and no communicator. Its steps may keep objects between runs (a primitive with
// its memory descriptors), so one executor owns it and one thread at a time runs it.

#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "core/collective_op.h"
#include "core/placement.h"
#include "core/setting.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/buffer.h"
#include "runtime/communicator.h"
#include "runtime/device.h"
#include "runtime/execution/work.h"

namespace lockstep {

// A value that a step reads or writes.
struct StepOperand {
  std::string name;    // the value's name, without the '%'
  std::string layout;  // empty: dense row-major
  BufferSlice slice;
  DType dtype = DType::kF32;  // of its elements
  Shape shape = {};           // on this rank; [] of memory that is no value of the program
};

// A connection from one rank along an axis of the mesh to another, if ranks run different parts of a program
// (backends/planning/own_part.h). It has a communicator of the two ranks, so transfers on different lanes never wait
// for each other.
struct Lane {
  std::string axis;
  int source = 0, target = 0;  // coordinates along the axis

  std::string ToString() const;  // "stage 0 to 1"
  bool operator==(const Lane&) const = default;
};

// The collective of a start and its wait. The order certificate consists of these. A barrier has no operands.
struct CollectiveInfo : Collective {
  int id = 0;  // shared by a start and its wait; also the index of the ticket
  // A transfer from one rank of a lane to the other. Each of the two ranks has only its own operand: an input, or an
  // output. `pairs` holds the lane's pair.
  bool is_transfer = false;
  std::string axis;   // of the mesh: names the communicator
  int mesh_axis = 0;  // its position in the mesh; for a transfer, that of its lane, after the axes
  // True if the computation waits for it before the next collectives along its axis start. Then it should not queue
  // behind collectives that are not awaited yet. See backends/planning/schedule.h.
  bool is_urgent = false;
  int when = -1;  // the position of a setting: a run in which it is 0 does not communicate; -1: all runs do
  // Equal if in place. Empty if this rank has no such operand: in a transfer, or with a root and program parts.
  BufferSlice input, output;
  std::string label;  // "bucket 0 (%dw, %db)": the name in messages
  // The name in messages if the label contains names that users do not know. Need not be unique. Empty: the label.
  std::string message_name;

  // True if messages call it a transfer: from the only rank with the value to another, or to all.
  bool is_called_transfer() const { return is_transfer || (op == CollectiveOp::kBroadcast && !message_name.empty()); }
  std::string_view name_in_messages() const { return message_name.empty() ? label : message_name; }
  std::string ToString() const;  // one line, equal on ranks that run the same program
  bool operator==(const CollectiveInfo&) const = default;
};

enum class StepKind : uint8_t {
  kKernel,  // computes the writes from the reads
  kCopy,    // copies one operand
  kStart,   // starts a collective
  kWait,    // waits for a collective
  // For jobs with parameter servers:
  kPush,       // sends them a gradient, which has been read when it returns
  kStartPull,  // starts to receive a variable after its update into its write
  kWaitPull,   // waits for this variable
};

// The description of a step, for printing, checking and profiling. It names all memory that the step touches.
struct StepInfo {
  StepKind kind = StepKind::kKernel;
  std::string name;                        // "onednn.matmul", "llvm.fusion", "copy", "all_reduce.start"
  std::string source;                      // the origin of the op in the model; may be empty
  std::vector<StepOperand> reads, writes;  // a wait reads nothing and writes the values that become usable
  BufferSlice scratch;                     // for kernels, with any content before and after; 0 bytes if there is none
  // (write, read) positions: this write may occupy exactly the bytes of this read. No other operands of a step share
  // memory.
  std::vector<std::pair<int, int>> may_overwrite;
  std::optional<CollectiveInfo> collective;  // for starts and waits
  int served = -1;                           // for pushes, pulls and their waits: position in Executable::served
  Work work;                                 // of kernels and copies

  // Returns "matmul %y, at onnx:/fc1/MatMul", with the names of the first `most` results.
  std::string ToString(size_t most = std::numeric_limits<size_t>::max()) const;
};

// Returns the buffers that a step may write, perhaps some of them twice. A collective writes its output from its start
// on. A part of a buffer is a different buffer.
std::vector<int32_t> BuffersWritten(const StepInfo& step);

// A rank's end of one axis of the mesh, or of a lane, in the current run.
struct AxisContext {
  // For the ranks along the axis. Null if that is only this rank, and for lanes between other ranks.
  Communicator* communicator = nullptr;
  // For urgent collectives: another communicator of the same ranks, or the same one if another would have no advantage.
  Communicator* urgent = nullptr;
  int coordinate = 0;  // of this rank; for a lane, 0 at the end with the smaller coordinate, 1 at the other
  Communicator::Evidence evidence;
  Communicator::Ticket comparison;  // the collective that carries the evidence, if the program has none along the axis

  Communicator& communicator_of(const CollectiveInfo& collective) const {
    return collective.is_urgent ? *urgent : *communicator;
  }
};

class ServedStates;

// The view of a running step on its executor.
class StepContext {
 public:
  StepContext(std::span<std::byte* const> buffers, Device& device, std::span<const AxisContext> axes,
              std::span<Communicator::Ticket> tickets, ServedStates* served = nullptr,
              std::span<const double> settings = {})
      : buffers_(buffers), device_(device), axes_(axes), tickets_(tickets), served_(served), settings_(settings) {}

  // Null if there is none.
  std::byte* data(const BufferSlice& slice) const {
    return slice.buffer < 0 ? nullptr : buffers_[static_cast<size_t>(slice.buffer)] + slice.offset;
  }
  std::span<std::byte* const> buffers() const { return buffers_; }
  Device& device() const { return device_; }
  Stream* stream() const { return device_.stream(); }
  const AxisContext& axis(int position) const { return axes_[static_cast<size_t>(position)]; }
  Communicator::Ticket& ticket(int id) const { return tickets_[static_cast<size_t>(id)]; }
  ServedStates& served() const { return *served_; }  // requires that servers keep states of the program
  // False for a collective that this run leaves out.
  bool communicates(const CollectiveInfo& collective) const {
    return collective.when < 0 || settings_[static_cast<size_t>(collective.when)] != 0;
  }

 private:
  std::span<std::byte* const> buffers_;
  Device& device_;
  std::span<const AxisContext> axes_;
  std::span<Communicator::Ticket> tickets_;
  ServedStates* served_;
  std::span<const double> settings_;
};

// Looks at the values of a run between its steps (Executor::Observe). All earlier work of the device has ended then. An
// error ends the run, like that of the step.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;

  // `step` is about to run: its reads have their values. `number` is its position in Executable::steps.
  virtual absl::Status Before(const StepInfo& step, size_t number, const StepContext& context) = 0;
  // `step` has run: its writes have their values. Those of a start have theirs only after its wait.
  virtual absl::Status After(const StepInfo& step, size_t number, const StepContext& context) = 0;

 protected:
  StepObserver() = default;
};

class Step {
 public:
  explicit Step(StepInfo info) : info_(std::move(info)) {}
  virtual ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  const StepInfo& info() const { return info_; }

  // Does the work, or queues it in context.stream(). The error need not name the op: the executor adds it.
  virtual absl::Status Run(StepContext& context) = 0;

 private:
  const StepInfo info_;
};

using StepList = std::vector<std::unique_ptr<Step>>;

// A backend's own way to run all steps at once, with the same effect as one after the other. Its errors name the step.
// On a device other than the host, the addresses of all buffers are the same in every run.
class CombinedRun {
 public:
  virtual ~CombinedRun() = default;
  CombinedRun(const CombinedRun&) = delete;
  CombinedRun& operator=(const CombinedRun&) = delete;

  virtual absl::Status Run(const StepList& steps, StepContext& context) = 0;

 protected:
  CombinedRun() = default;
};

// The work that a backend does once for a program, on the device for which it is loaded: machine code, plans, choices.
// Executor::Load calls it on every rank, before the program's memory is allocated, with its communicator. All ranks
// make the same calls of the communicator in the same order. Its errors name the op, and Load returns them on all
// ranks.
using Preparation = absl::AnyInvocable<absl::Status(Device& device, Communicator& communicator)>;

// An input, a result or a state, as the caller sees it.
struct ValueInfo {
  std::string name;
  TensorType global_type, local_type;  // differ if a placement is split
  PlacementMap placements;
  int32_t buffer = -1;     // dense, row-major; -1: a state on other ranks or on servers
  bool is_served = false;  // a state that only servers have; the executor requests it from them

  // Returns true if this rank's executor can read it.
  bool is_here() const { return buffer >= 0 || is_served; }
};

// A state that parameter servers update (decisions/0047). A rank has a copy of it. Only the servers have the
// optimizer's states for it.
struct ServedState {
  std::string name;
  int32_t buffer = -1;  // of the copy
  TensorType type;
  bool synchronous = true;  // an update waits for the gradients of all workers
  int64_t max_staleness = -1;
  int64_t bigarray_bound = 0;  // a state with more elements is split over all servers
  // The states of its update, by their names in the program and in the update.
  std::vector<std::pair<std::string, TensorType>> kept;
  std::vector<std::string> settings;  // settings of the program that its update uses
  // Returns the text of the update of a piece, which backends/server_update.h compiles on the servers.
  std::function<absl::StatusOr<std::string>(const TensorType& piece)> update;
};

// A number that keeps its value in all runs until it is set: an f64 at offset 8 * i of the settings buffer, where i is
// its position in Executable::settings.
struct SettingInfo {
  std::string name;
  Setting setting;
};

// Returns an error that names the setting if the value is not allowed.
absl::Status CheckValue(const SettingInfo& setting, double value);

// The proof that ranks which run the same text cannot hang, along all axes on which they communicate.
// backends/planning/certificate.h makes it; ranks compare it at load.
struct Certificate {
  uint64_t hash = 0;
  std::vector<std::string> lines;  // the collectives of all axes in order: op, root, kind, dtype, count, axis, contents

  std::string ToString() const;  // "9f3c1a72": the first 32 bits
};

// The computation that a program repeats so that its memory stays within a limit, and its whole computation. Operations
// are counted as by FlopsOf; bytes are those that kernels read and write.
struct Recomputation {
  int64_t kernels = 0, all_kernels = 0;
  double flops = 0, all_flops = 0;
  double bytes = 0, all_bytes = 0;

  Recomputation& operator+=(const Recomputation& other);
  Recomputation Times(int64_t runs) const;
  std::string ToString() const;  // "24 of 310 kernels run again: 3.1 % more operations, 9.0 % more bytes"
};

struct Executable {
  std::string name;     // of the graph
  std::string backend;  // "cpu"
  Mesh mesh;
  int threads = 1;  // per rank; the kernels were made for this number
  std::vector<Buffer> buffers;
  std::vector<Tensor> constants;  // in the order of the constant buffers
  std::vector<ValueInfo> inputs, results;
  std::vector<ValueInfo> states;  // the states of all ranks, even if they are only on some of them, and of servers
  std::vector<ServedState> served;
  std::vector<SettingInfo> settings;
  int32_t settings_buffer = -1;  // -1 if there are none
  StepList steps;
  Preparation prepare;                        // null: steps need no preparation before their first run
  std::unique_ptr<CombinedRun> combined_run;  // null: the steps run one after the other
  int num_collectives = 0;
  // The axis along which ranks run different parts of the program, with different steps; empty: all run the same.
  std::string parts_along;
  std::vector<Lane> lanes;              // between the parts: those of all ranks, in one order
  uint64_t kernels_constant_bytes = 0;  // bytes that kernels hold themselves: constants in bodies of loops
  Recomputation recomputed;
  // The bytes that kernels would read and write at least, if loops were joined as far as the other kernels allow
  // (backends/planning/least_bytes.h).
  uint64_t least_bytes = 0;
  Certificate certificate;
  // Returns the ceilings of the machine that it is compiled for. A CPU is measured, which takes part of a second.
  std::function<absl::StatusOr<Ceilings>()> ceilings;
  // lines about build, libraries and processor: if they are equal, equal programs compute the same bits
  std::string fingerprint;
  // What ranks compare in the place of graph_text, if their programs differ in numbers of rows; else empty.
  std::string common_text;
  std::string graph_text;  // the program that a rank runs, after all passes; with parts, the text of all parts

  // Returns the bytes of all buffers of a kind that count for one rank.
  uint64_t BytesOf(BufferKind kind) const;
  std::string ToString() const;
};

}  // namespace lockstep
