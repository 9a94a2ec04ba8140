// A compiled program: a linear list of steps over a table of buffers. Backends make executables, an Executor runs them.
// It prints as text, since that is what one debugs at run time:
//
//   executable @step backend=cpu ranks=4 threads=2 arena=438KiB states=31KiB buckets=31KiB certificate=9f3c1a72
//     [0] onednn.matmul         reads %x, %dz in arena+8192  writes %dw in buckets data+0  // onnx:/fc1/MatMul
//     [1] all_reduce.start      bucket 0 (%dw)
//     [2] all_reduce.wait       bucket 0 (%dw)
//     [3] llvm.sgd              reads %w, %g in buckets data+0  writes %w.next in state w
//
// An executable knows no addresses and no communicator. Its steps may keep what they need between runs (a primitive
// with its memory descriptors), so one executor owns it and one thread at a time runs it.

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

namespace lockstep {

// A value that a step reads or writes.
struct StepOperand {
  std::string name;    // of the value, without the '%'
  std::string layout;  // empty: dense row-major
  BufferSlice slice;
};

// A way from one rank along an axis of the mesh to another one, where ranks run parts of their own of a program
// (backends/planning/own_part.h). It has a communicator of the two, so that what goes one way never queues behind what
// goes another.
struct Lane {
  std::string axis;
  int source = 0, target = 0;  // coordinates along the axis

  std::string ToString() const;  // "stage 0 to 1"
  bool operator==(const Lane&) const = default;
};

// The collective of a start and its wait. The order certificate consists of these. A barrier has no operands.
struct CollectiveInfo : Collective {
  int id = 0;  // a start and its wait share it; also the index of the ticket
  // From the one rank of a lane to the other, each of which has its end alone: an input, or an output. `pairs` is the
  // lane's one.
  bool is_transfer = false;
  std::string axis;   // of the mesh: names the communicator
  int mesh_axis = 0;  // its position in the mesh; of a transfer that of its lane, behind the axes
  // The computation waits for it before the next collectives along its axis start, so it should not queue behind those
  // that nobody waits for yet. See backends/planning/schedule.h.
  bool is_urgent = false;
  // Equal for in place. Of a transfer, and of what has a root and a part of a program, empty where the rank has none.
  BufferSlice input, output;
  std::string label;  // "bucket 0 (%dw, %db)": what messages call it
  // What they call it instead, where the label has names that no user knows; need not be unique. Empty: the label.
  std::string user_label;

  // Whether messages call it a transfer: of what one rank alone has, to another one or to all.
  bool is_called_transfer() const { return is_transfer || (op == CollectiveOp::kBroadcast && !user_label.empty()); }
  std::string_view name_in_messages() const { return user_label.empty() ? label : user_label; }
  std::string ToString() const;  // one line, equal on ranks that run the same program
  bool operator==(const CollectiveInfo&) const = default;
};

enum class StepKind : uint8_t {
  kKernel,  // computes the writes from the reads
  kCopy,    // of one operand
  kStart,   // of a collective
  kWait,    // for a collective
  // Of a job with parameter servers:
  kPush,       // gives them a gradient, which it has taken when it returns
  kStartPull,  // of a variable after its update; its write is filled from then on
  kWaitPull,   // until it is there
};

// What a step is, for those who print, check and profile it. It names all memory that the step touches.
struct StepInfo {
  StepKind kind = StepKind::kKernel;
  std::string name;                        // "onednn.matmul", "llvm.fusion", "copy", "all_reduce.start"
  std::string source;                      // where the op comes from in the model; may be empty
  std::vector<StepOperand> reads, writes;  // a wait reads nothing and writes what becomes usable
  BufferSlice scratch;                     // of a kernel, with any content before and after; of 0 bytes if it has none
  // (write, read) positions: that write may lie in exactly the bytes of that read. No other operands of a step share
  // memory.
  std::vector<std::pair<int, int>> may_overwrite;
  std::optional<CollectiveInfo> collective;  // of a start and a wait
  int served = -1;                           // of a push, a pull and its wait: position in Executable::served

  // "matmul %y, at onnx:/fc1/MatMul"; of the results that it writes the first `most` by name.
  std::string ToString(size_t most = std::numeric_limits<size_t>::max()) const;
};

// The buffers that a step may write, some perhaps twice. A collective writes its output from its start on. A part of a
// buffer is not that buffer.
std::vector<int32_t> BuffersWritten(const StepInfo& step);

// A rank's end of one axis of the mesh, or of a lane, in the current run.
struct AxisContext {
  // Of the ranks along the axis; null where that is this rank alone, and of a lane between others.
  Communicator* communicator = nullptr;
  // For what is urgent: another of the same ranks, or the same, where nothing would be gained.
  Communicator* urgent = nullptr;
  int coordinate = 0;  // of this rank; of a lane 0 at its end of the smaller coordinate along the axis, else 1
  Communicator::Evidence evidence;
  Communicator::Ticket witness;  // of the collective that carries it, if the program has none along the axis

  Communicator& communicator_of(const CollectiveInfo& collective) const {
    return collective.is_urgent ? *urgent : *communicator;
  }
};

class ServedStates;

// What a running step sees of its executor.
class StepContext {
 public:
  StepContext(std::span<std::byte* const> buffers, Device& device, std::span<const AxisContext> axes,
              std::span<Communicator::Ticket> tickets, ServedStates* served = nullptr)
      : buffers_(buffers), device_(device), axes_(axes), tickets_(tickets), served_(served) {}

  // Null where there is none.
  std::byte* data(const BufferSlice& slice) const {
    return slice.buffer < 0 ? nullptr : buffers_[static_cast<size_t>(slice.buffer)] + slice.offset;
  }
  std::span<std::byte* const> buffers() const { return buffers_; }
  Device& device() const { return device_; }
  Stream* stream() const { return device_.stream(); }
  const AxisContext& axis(int position) const { return axes_[static_cast<size_t>(position)]; }
  Communicator::Ticket& ticket(int id) const { return tickets_[static_cast<size_t>(id)]; }
  ServedStates& served() const { return *served_; }  // requires that the program has states that servers keep

 private:
  std::span<std::byte* const> buffers_;
  Device& device_;
  std::span<const AxisContext> axes_;
  std::span<Communicator::Ticket> tickets_;
  ServedStates* served_;
};

class Step {
 public:
  explicit Step(StepInfo info) : info_(std::move(info)) {}
  virtual ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  const StepInfo& info() const { return info_; }

  // Does the work, or puts it into context.stream(). The error need not name the op: the executor adds it.
  virtual absl::Status Run(StepContext& context) = 0;

 private:
  const StepInfo info_;
};

using StepList = std::vector<std::unique_ptr<Step>>;

// A backend's own way to run all steps at once, with the same effect as one after the other. Its errors name the step.
// On a device that is not the host the addresses of all buffers are the same in every run.
class WholeRun {
 public:
  virtual ~WholeRun() = default;
  WholeRun(const WholeRun&) = delete;
  WholeRun& operator=(const WholeRun&) = delete;

  virtual absl::Status Run(const StepList& steps, StepContext& context) = 0;

 protected:
  WholeRun() = default;
};

// What a backend does once for a program, on the device that it is loaded for: machine code, plans, choices. Called by
// Executor::Load on every rank, before the program's memory is allocated, with the communicator that it is loaded with:
// all ranks call what they call of that in the same order. Its errors name the op and are Load's, on all ranks.
using Preparation = absl::AnyInvocable<absl::Status(Device& device, Communicator& communicator)>;

// An input, a result or a state, as the caller knows it.
struct ValueInfo {
  std::string name;
  TensorType global_type, local_type;  // differ where a placement is split
  PlacementMap placements;
  int32_t buffer = -1;     // dense, row-major; -1: a state that other ranks, or servers, have
  bool is_served = false;  // a state that servers alone have, whom the executor asks for it

  // Whether this rank's executor can read it.
  bool is_here() const { return buffer >= 0 || is_served; }
};

// A state that parameter servers update (decisions/0047). A rank has a copy of it; what its optimizer keeps the servers
// alone have.
struct ServedState {
  std::string name;
  int32_t buffer = -1;  // of the copy
  TensorType type;
  bool synchronous = true;  // an update waits for the gradients of all workers
  int64_t max_staleness = -1;
  int64_t bigarray_bound = 0;  // a state of more elements is cut over all servers
  // What its update keeps, by the names that states have in the program and in the update.
  std::vector<std::pair<std::string, TensorType>> kept;
  std::vector<std::string> settings;  // of the program, that its update takes
  // The text of the update of a piece of it, which backends/server_update.h compiles on the servers.
  std::function<absl::StatusOr<std::string>(const TensorType& piece)> update;
};

// A number that holds for all runs until another is set: an f64 at offset 8 * i of the buffer of settings, where i is
// its place in Executable::settings.
struct SettingInfo {
  std::string name;
  Setting setting;
};

// An error that names the setting if it cannot have the value.
absl::Status CheckValue(const SettingInfo& setting, double value);

// The proof that ranks which run the same text cannot hang, along whichever axes they communicate: made by
// backends/planning/certificate.h, compared at load.
struct Certificate {
  uint64_t hash = 0;
  std::vector<std::string> lines;  // the collectives of all axes in order: op, root, kind, dtype, count, axis, contents

  std::string ToString() const;  // "9f3c1a72": the first 32 bits
};

// What a program computes more than once so that its memory is within a limit, beside all that it computes. Operations
// are counted as FlopsOf does, bytes are those that kernels read and write.
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
  int threads = 1;  // per rank, for which the kernels were made
  std::vector<Buffer> buffers;
  std::vector<Tensor> constants;  // by order of the constant buffers
  std::vector<ValueInfo> inputs, results;
  std::vector<ValueInfo> states;  // of all ranks, also where each has some of them alone; and of servers
  std::vector<ServedState> served;
  std::vector<SettingInfo> settings;
  int32_t settings_buffer = -1;  // -1 if there are none
  StepList steps;
  Preparation prepare;              // null: steps need nothing before their first run
  std::unique_ptr<WholeRun> whole;  // null: the steps run one after the other
  int num_collectives = 0;
  // Along which ranks run parts of their own of the program, so that their steps differ; empty: all run the same.
  std::string parts_along;
  std::vector<Lane> lanes;              // between the parts: those of all ranks, in one order
  uint64_t kernels_constant_bytes = 0;  // that kernels hold themselves: constants in bodies of loops
  Recomputation recomputed;
  Certificate certificate;
  std::string fingerprint;  // lines about build, libraries and processor: where they are equal, so are the bits of
                            // equal programs
  std::string graph_text;   // of the program that a rank runs, after all passes: of all parts, if it has some

  // Bytes of all buffers of a kind that count for a rank.
  uint64_t BytesOf(BufferKind kind) const;
  std::string ToString() const;
};

}  // namespace lockstep
