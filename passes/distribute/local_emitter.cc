#include "passes/distribute/local_emitter.h"

#include <utility>

#include "core/op_def.h"
#include "core/tensor.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;

// Returns the shape with dimension `dim` as dimensions [1, parts, extent / parts]. The first is that of the ranks: in
// global types a part is the dimension in the middle, which is not split.
Shape WithParts(const Shape& shape, int64_t dim, int64_t parts) {
  Ints dims = shape.dims();
  const auto at = dims.begin() + dim;
  *at /= parts;
  dims.insert(at, {1, parts});
  return Shape(std::move(dims));
}

}  // namespace

PlacementMap LocalEmitter::Along(Placement placement) const {
  if (ranks_ == 1 || placement.is_replicated()) return {};
  return {{Axis(), placement}};
}

std::vector<Value> LocalEmitter::Ops(std::string_view op, std::vector<Value> operands, AttributeMap attributes,
                                     Placement placement) {
  std::vector<Value> results(std::max<size_t>(operands.size(), 1));
  if (!status_.ok()) return results;
  NodeSpec spec{&GetOp(op), std::move(operands), std::move(attributes), source_, {}};
  spec.placements.assign(results.size(), Along(placement));
  const absl::StatusOr<Node*> node = graph_.Insert(std::move(spec));
  if (!node.ok()) {
    status_ = node.status();
    return results;
  }
  for (size_t i = 0; i < (*node)->num_results(); ++i) results[i] = (*node)->result(i);
  return results;
}

Value LocalEmitter::Reshape(Value x, Shape shape) {
  return x ? Reshape(x, std::move(shape), x.placement(kDataAxis)) : Value();
}

Value LocalEmitter::Reshape(Value x, Shape shape, Placement placement) {
  return Op("reshape", {x}, {{"shape", shape.dims()}}, placement);
}

Value LocalEmitter::Splat(double value, const TensorType& type, Placement placement) {
  const Value scalar = Op("constant", {}, {{"value", Tensor::Scalar(type.dtype, value)}}, Placement::Replicated());
  return Op("broadcast", {scalar}, {{"shape", type.shape.dims()}, {"dims", Ints()}}, placement);
}

Value LocalEmitter::Named(Value value, std::string_view name) {
  if (value) graph_.SetName(value, name);
  return value;
}

Value LocalEmitter::Cut(Value x, int64_t dim, int64_t i, int64_t parts) {
  if (!x) return x;
  const Shape parted = WithParts(x.shape(), dim, parts);
  if (parts == 1) return Reshape(x, x.shape());
  Ints start(static_cast<size_t>(parted.rank())), limit = parted.dims(), stride(start.size(), 1);
  start[static_cast<size_t>(dim) + 1] = i;
  limit[static_cast<size_t>(dim) + 1] = i + 1;
  const Value part = Op("slice", {Reshape(x, parted)}, {{"start", start}, {"limit", limit}, {"stride", stride}},
                        Placement::Split(dim));
  return Reshape(part, x.shape().WithDim(dim, x.shape()[dim] / parts));
}

Value LocalEmitter::Join(const std::vector<Value>& parts, int64_t dim) {
  if (!status_.ok()) return Value();
  const Shape& shape = parts[0].shape();
  if (parts.size() == 1) return Reshape(parts[0], shape);
  std::vector<Value> parted;
  for (Value part : parts) parted.push_back(Reshape(part, WithParts(shape, dim, 1)));
  const Value joined = Op("concat", parted, {{"dim", dim + 1}}, Placement::Split(dim));
  return Reshape(joined, shape.WithDim(dim, shape[dim] * static_cast<int64_t>(parts.size())));
}

std::vector<Value> LocalEmitter::Gather(const std::vector<Value>& xs, int64_t dim, int64_t bucket) {
  return Ops("all_gather", xs, {{"axis", Axis()}, {"dim", dim}, {"bucket", bucket}}, Placement::Replicated());
}

Value LocalEmitter::VirtualRank(int64_t i, int64_t parts) {
  const auto scalar = [&](int64_t value) {
    const Tensor tensor = Tensor::Scalar(DType::kI64, static_cast<double>(value));
    return Op("constant", {}, {{"value", tensor}}, Placement::Replicated());
  };
  if (ranks_ == 1) return scalar(i);
  const Value rank = Op("axis_index", {}, {{"axis", Axis()}}, Placement::Local());
  if (parts == 1) return rank;
  return Op("add", {Op("mul", {rank, scalar(parts)}, {}, Placement::Local()), scalar(i)}, {}, Placement::Local());
}

Value LocalEmitter::RankPlus(int64_t number) {
  const Value rank = Op("axis_index", {}, {{"axis", Axis()}}, Placement::Local());
  const Tensor tensor = Tensor::Scalar(DType::kI64, static_cast<double>(number));
  return Op("add", {rank, Op("constant", {}, {{"value", tensor}}, Placement::Replicated())}, {}, Placement::Local());
}

// Repeats the entries for each rank, so that `shard` takes them on any rank.
Value LocalEmitter::Own(Value x, int64_t dim, int64_t begin, int64_t end) {
  if (!x) return x;
  const auto at = static_cast<size_t>(dim);
  Ints start(static_cast<size_t>(x.shape().rank())), limit = x.shape().dims(), dims;
  const Ints stride(start.size(), 1);
  start[at] = begin;
  limit[at] = end;
  const Value own = Op("slice", {x}, {{"start", start}, {"limit", limit}, {"stride", stride}}, Placement::Replicated());
  Ints repeated = x.shape().WithDim(dim, end - begin).dims();
  repeated.insert(repeated.begin() + dim, ranks_);
  for (int64_t d = 0; d < x.shape().rank(); ++d) dims.push_back(d < dim ? d : d + 1);
  const Value copies = Op("broadcast", {own}, {{"shape", repeated}, {"dims", dims}}, Placement::Replicated());
  return Shard(Reshape(copies, x.shape().WithDim(dim, ranks_ * (end - begin))), dim);
}

}  // namespace lockstep::passes
