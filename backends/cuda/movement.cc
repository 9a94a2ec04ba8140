// Ops that copy elements of any type, as boxes of the largest units that fit.

#include <cstring>

#include "backends/cuda/emitters.h"
#include "backends/cuda/kernels/copy.h"
#include "backends/planning/inner_collective.h"

namespace lockstep::cuda {
namespace {

using Ints = std::vector<int64_t>;

// The values of CopyArgs, in bytes.
struct Box {
  int64_t outer = 1, middle = 1, run = 0;
  int64_t from_outer = 0, from_middle = 0, to_outer = 0, to_middle = 0;
  int64_t from = 0, to = 0;  // offsets of the box's beginning
};

// Copies boxes; all of them are moved in the same units.
class BoxCopy {
 public:
  // `offset_unit` divides the offsets that are added to the beginning of a box.
  BoxCopy(EmitContext& c, const Box& box, int64_t offset_unit = 16) : box_(box) {
    for (int64_t bytes :
         {box.run, box.from_outer, box.from_middle, box.to_outer, box.to_middle, box.from, box.to, offset_unit}) {
      while (bytes % unit_ != 0) unit_ /= 2;
    }
    kernel_ = c.KernelOf("copy", NameFor("copy", static_cast<uint64_t>(unit_)));
  }

  absl::Status Run(CudaStream& stream, const std::byte* from, std::byte* to, int64_t from_offset = 0) {
    const CopyArgs args{from + box_.from + from_offset,
                        to + box_.to,
                        box_.outer,
                        box_.middle,
                        box_.run / unit_,
                        box_.from_outer / unit_,
                        box_.from_middle / unit_,
                        box_.to_outer / unit_,
                        box_.to_middle / unit_};
    return kernel_.Run(stream, args.outer * args.middle * args.run, args);
  }

 private:
  Box box_;
  int64_t unit_ = 16;
  DeviceKernel kernel_;
};

Kernel KernelFor(std::string name, absl::AnyInvocable<absl::Status(const KernelArgs&)> run) {
  Kernel kernel;
  kernel.name = std::move(name);
  kernel.run = std::move(run);
  return kernel;
}

// Transposes elements [i][j][bytes] to [j][i][bytes].
Kernel SwapOuter(EmitContext& c, std::string name, int64_t rows, int64_t columns, int64_t bytes) {
  BoxCopy copy(c, {.outer = columns,
                   .middle = rows,
                   .run = bytes,
                   .from_outer = bytes,
                   .from_middle = columns * bytes,
                   .to_outer = rows * bytes,
                   .to_middle = bytes});
  return KernelFor(std::move(name), [copy](const KernelArgs& args) mutable {
    return copy.Run(StreamOf(args), args.reads[0], args.writes[0]);
  });
}

void SetValue(PadArgs& args, const Tensor& scalar) { std::memcpy(&args.value, scalar.bytes(), SizeOf(scalar.dtype())); }

// Returns the arguments of a pad without addresses. Each dimension that is not padded is merged into the one before it.
// `rank` becomes the number of remaining dimensions, which may exceed the capacity of the arguments.
PadArgs PadArgsOf(const Node& node, int64_t& rank) {
  const Ints &low = node.attr<Ints>("low"), &high = node.attr<Ints>("high");
  PadArgs args{};
  rank = 0;
  for (size_t i = 0; i < low.size(); ++i) {
    const int64_t x = node.operand(0).shape().dims()[i], y = node.type().shape.dims()[i];
    const bool merges = rank > 0 && low[i] == 0 && high[i] == 0;
    if (!merges && ++rank <= kPadDims) args.x_extents[rank - 1] = args.y_extents[rank - 1] = 1;
    if (rank > kPadDims) continue;
    args.x_extents[rank - 1] *= x;
    args.y_extents[rank - 1] *= y;
    args.low[rank - 1] = merges ? args.low[rank - 1] * y : low[i];
  }
  args.rank = rank;
  args.total = node.type().num_elements();
  SetValue(args, Tensor::Scalar(node.type().dtype, node.attr<double>("value")));
  return args;
}

}  // namespace

absl::Status EmitConcat(const Node& node, EmitContext& c) {
  const int64_t dim = node.attr<int64_t>("dim");
  const Runs runs(node.type(), dim);
  const int64_t whole = node.type().shape[dim] * runs.inner;
  std::vector<BoxCopy> copies;
  int64_t at = 0;
  for (const Value& operand : node.operands()) {
    const int64_t run = operand.shape()[dim] * runs.inner;
    copies.emplace_back(c, Box{.outer = runs.outer, .run = run, .from_outer = run, .to_outer = whole, .to = at});
    at += run;
  }
  Kernel kernel = KernelFor("cuda.concat", [copies](const KernelArgs& args) mutable {
    for (size_t i = 0; i < copies.size(); ++i)
      RETURN_IF_ERROR(copies[i].Run(StreamOf(args), args.reads[i], args.writes[0]));
    return absl::OkStatus();
  });
  c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
  return absl::OkStatus();
}

bool SupportsPad(const Node& node) {
  int64_t rank = 0;
  (void)PadArgsOf(node, rank);
  return rank <= kPadDims;
}

absl::Status EmitPad(const Node& node, EmitContext& c) {
  int64_t rank = 0;
  PadArgs given = PadArgsOf(node, rank);
  DeviceKernel pad = c.KernelOf("copy", NameFor("pad", SizeOf(node.type().dtype)));
  Kernel kernel = KernelFor("cuda.pad", [given, pad](const KernelArgs& args) mutable {
    given.x = args.reads[0];
    given.y = args.writes[0];
    return pad.Run(StreamOf(args), given.total, given);
  });
  c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitShard(const Node& node, EmitContext& c) {
  const int64_t dim = node.attr<int64_t>("dim");
  const Runs runs(node.type(), dim);
  const int64_t whole = node.operand(0).shape()[dim] * runs.inner, slice = node.type().shape[dim] * runs.inner;
  BoxCopy copy(c, {.outer = runs.outer, .run = slice, .from_outer = whole, .to_outer = slice}, slice);
  Kernel kernel = KernelFor("cuda.shard", [copy, slice](const KernelArgs& args) mutable {
    return copy.Run(StreamOf(args), args.reads[0], args.writes[0], args.coordinate * slice);
  });
  kernel.mesh_axis = c.builder().MeshAxisOf(node);
  c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
  return absl::OkStatus();
}

// Emitted as a pad of an empty tensor: one element with the rank's coordinate.
absl::Status EmitAxisIndex(const Node& node, EmitContext& c) {
  const DType dtype = node.type().dtype;
  DeviceKernel pad = c.KernelOf("copy", NameFor("pad", SizeOf(dtype)));
  Kernel kernel = KernelFor("cuda.axis_index", [pad, dtype](const KernelArgs& args) mutable {
    PadArgs given{};
    SetValue(given, Tensor::Scalar(dtype, args.coordinate));
    given.y = args.writes[0];
    given.total = given.rank = given.y_extents[0] = 1;
    return pad.Run(StreamOf(args), 1, given);
  });
  kernel.mesh_axis = c.builder().MeshAxisOf(node);
  c.Add(node, std::move(kernel), {}, {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitInnerCollective(const Node& node, EmitContext& c) {
  return EmitCollectiveOfSlices(node, c, [&](int64_t rows, int64_t columns, int64_t bytes) {
    return SwapOuter(c, "cuda." + std::string(node.op_name()), rows, columns, bytes);
  });
}

}  // namespace lockstep::cuda
