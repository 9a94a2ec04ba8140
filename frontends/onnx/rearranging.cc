// Operators that move elements between channels and spatial positions, and crops around the centre.

#include <algorithm>
#include <numeric>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

struct Blocks {
  int64_t size;
  bool depth_first;  // mode DCR: the position in a block varies slower than the channel; mode CRD: faster
};

absl::StatusOr<Blocks> ReadBlocks(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  if (x.shape().rank() != 4) return n.Error() << "input is " << x.type() << ", expected [N, C, H, W]";
  const int64_t size = n.Int("blocksize", 0);
  if (size < 1 || size > (1 << 15)) return n.Error() << "attribute blocksize is " << size << ", expected at least 1";
  const std::string mode = n.String("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") return n.Error() << "attribute mode is '" << mode << "', expected DCR or CRD";
  return Blocks{size, mode == "DCR"};
}

absl::Status DepthToSpace(OnnxNode& n) {
  ASSIGN_OR_RETURN(const Blocks blocks, ReadBlocks(n));
  const Shape& x = n.shape(0);
  const int64_t s = blocks.size;
  if (x[1] % (s * s) != 0)
    return n.Error() << "the channels of " << n.type(0) << " are not a multiple of " << s << " * " << s;
  const int64_t channels = x[1] / (s * s);
  Builder& b = n.b();
  const Value apart = blocks.depth_first ? b.Reshape(n.input(0), Shape({x[0], s, s, channels, x[2], x[3]}))
                                         : b.Reshape(n.input(0), Shape({x[0], channels, s, s, x[2], x[3]}));
  const Value moved = b.Transpose(apart, blocks.depth_first ? Ints{0, 3, 4, 1, 5, 2} : Ints{0, 1, 4, 2, 5, 3});
  n.SetOutput(0, b.Reshape(moved, Shape({x[0], channels, x[2] * s, x[3] * s})));
  return absl::OkStatus();
}

absl::Status SpaceToDepth(OnnxNode& n) {
  ASSIGN_OR_RETURN(const Blocks blocks, ReadBlocks(n));
  const Shape& x = n.shape(0);
  const int64_t s = blocks.size;
  if (x[2] % s != 0 || x[3] % s != 0)
    return n.Error() << "height and width of " << n.type(0) << " do not divide into blocks of " << s << " by " << s;
  Builder& b = n.b();
  const Value apart = b.Reshape(n.input(0), Shape({x[0], x[1], x[2] / s, s, x[3] / s, s}));
  const Value moved = b.Transpose(apart, blocks.depth_first ? Ints{0, 3, 5, 1, 2, 4} : Ints{0, 1, 3, 5, 2, 4});
  n.SetOutput(0, b.Reshape(moved, Shape({x[0], x[1] * s * s, x[2] / s, x[3] / s})));
  return absl::OkStatus();
}

absl::Status CenterCropPad(OnnxNode& n) {
  ASSIGN_OR_RETURN(const Ints wanted, n.IntsInput(1));
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const int64_t rank = x.shape().rank();
  Ints axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  axes = n.Ints("axes", axes);
  RETURN_IF_ERROR(n.Axes(axes, rank).status());
  if (wanted.size() != axes.size())
    return n.Error() << "shape " << ListToString(wanted) << " for axes " << ListToString(axes);
  RETURN_IF_ERROR(n.CheckedShape(wanted).status());
  Ints start(static_cast<size_t>(rank), 0), limit = x.shape().dims(), low = start, high = start, dims = limit;
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = static_cast<size_t>(axes[i] < 0 ? axes[i] + rank : axes[i]);
    const int64_t more = wanted[i] - limit[axis];
    dims[axis] = wanted[i];
    if (more < 0) {
      start[axis] = -more / 2;
      limit[axis] = start[axis] + wanted[i];
    } else {
      low[axis] = more / 2;
      high[axis] = more - more / 2;
    }
  }
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(dims));
  Value result = x;
  if (limit != x.shape().dims()) result = n.b().Slice(result, start, limit);
  if (result && result.shape() != shape) result = n.b().Pad(result, low, high);
  n.SetOutput(0, result);
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> RearrangingOps() {
  return {
      {"DepthToSpace", 1, kNoEnd, 1, 1, DepthToSpace},
      {"SpaceToDepth", 1, kNoEnd, 1, 1, SpaceToDepth},
      {"CenterCropPad", 18, kNoEnd, 2, 2, CenterCropPad},
  };
}

}  // namespace lockstep
