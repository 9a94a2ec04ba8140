#include "core/builder.h"

#include <algorithm>

#include "core/placement_rules.h"

namespace lockstep {

std::vector<Value> Builder::Ops(std::string_view op, std::vector<Value> operands, AttributeMap attributes) {
  const OpDef& def = GetOp(op);
  const std::vector<Value> nulls(std::max(def.result_names().size(), operands.size()));
  if (!status_.ok()) return nulls;
  for (Value operand : operands) {
    LOCKSTEP_CHECK(operand) << "null operand of " << def.name();
  }
  if (graph_.is_placed()) {
    Fail(SliceOperands(graph_, def, attributes, operands, before_));
    if (!status_.ok()) return nulls;
  }
  absl::StatusOr<Node*> node = graph_.Insert({&def, std::move(operands), std::move(attributes), source_, {}}, before_);
  if (!node.ok()) {
    Fail(node.status());
    return nulls;
  }
  std::vector<Value> results;
  for (size_t i = 0; i < (*node)->num_results(); ++i) results.push_back((*node)->result(i));
  return results;
}

void Builder::Copy(const Node& node, ValueMap& map) {
  if (!status_.ok()) return;
  Fail(graph_.InsertCopy(node, map, before_).status());
}

Value Builder::Op(std::string_view op, std::vector<Value> operands, AttributeMap attributes) {
  return Ops(op, std::move(operands), std::move(attributes))[0];
}

Value Builder::Constant(Tensor value) { return Op("constant", {}, {{"value", std::move(value)}}); }

Value Builder::Splat(double value, const TensorType& type) {
  Tensor scalar = Tensor::Scalar(type.dtype, value);
  if (!IsFloat(type.dtype) && scalar.At(0) != value) {
    Fail(InvalidArgument() << type.dtype << " cannot represent the value " << DoubleToString(value)
                           << (source_.empty() ? "" : ", at ") << source_);
    return Value();
  }
  return Broadcast(Constant(std::move(scalar)), type.shape, {});
}

Value Builder::Iota(const TensorType& type, int64_t dim) {
  return Op("iota", {}, {{"shape", type.shape.dims()}, {"dtype", type.dtype}, {"dim", dim}});
}

Value Builder::Reshape(Value x, Shape shape) {
  if (!x || x.shape() == shape) return x;
  return Op("reshape", {x}, {{"shape", shape.dims()}});
}

Value Builder::Transpose(Value x, std::vector<int64_t> permutation) {
  return Op("transpose", {x}, {{"permutation", std::move(permutation)}});
}

Value Builder::Broadcast(Value x, Shape shape, std::vector<int64_t> dims) {
  if (!x || x.shape() == shape) return x;
  return Op("broadcast", {x}, {{"shape", shape.dims()}, {"dims", std::move(dims)}});
}

Value Builder::BroadcastOver(Value x, const Shape& shape, const std::vector<int64_t>& dims) {
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < shape.rank(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) kept.push_back(i);
  }
  return Broadcast(x, shape, std::move(kept));
}

Value Builder::Convert(Value x, DType dtype) {
  if (!x || x.dtype() == dtype) return x;
  return Op("convert", {x}, {{"dtype", dtype}});
}

Value Builder::Concat(std::vector<Value> xs, int64_t dim) { return Op("concat", std::move(xs), {{"dim", dim}}); }

Value Builder::Slice(Value x, std::vector<int64_t> start, std::vector<int64_t> limit, std::vector<int64_t> stride) {
  if (stride.empty()) stride.assign(start.size(), 1);
  return Op("slice", {x}, {{"start", std::move(start)}, {"limit", std::move(limit)}, {"stride", std::move(stride)}});
}

Value Builder::Pad(Value x, std::vector<int64_t> low, std::vector<int64_t> high, double value) {
  return Op("pad", {x}, {{"low", std::move(low)}, {"high", std::move(high)}, {"value", value}});
}

Value Builder::Reverse(Value x, std::vector<int64_t> dims) {
  if (!x || dims.empty()) return x;
  return Op("reverse", {x}, {{"dims", std::move(dims)}});
}

Value Builder::Gather(Value x, Value indices, int64_t dim, int64_t batch_dims) {
  return Op("gather", {x, indices}, {{"dim", dim}, {"batch_dims", batch_dims}});
}

Value Builder::ScatterSum(Value indices, Value updates, int64_t dim, int64_t batch_dims, int64_t size) {
  return Op("scatter_sum", {indices, updates}, {{"dim", dim}, {"batch_dims", batch_dims}, {"size", size}});
}

Value Builder::Pick(Value x, Value indices, int64_t dim) {
  if (!x || !indices) return Value();
  const Value count = Iota(TensorType{indices.dtype(), x.shape()}, dim);
  const Value is_named = Compare(count, BroadcastOver(indices, x.shape(), {dim}), "eq");
  return ReduceSum(Select(is_named, x, SplatLike(0, x)), {dim});
}

Value Builder::Scatter(Value x, Value indices, Value updates, int64_t dim, int64_t batch_dims, std::string kind) {
  return Op("scatter", {x, indices, updates}, {{"dim", dim}, {"batch_dims", batch_dims}, {"kind", std::move(kind)}});
}

Value Builder::ReduceSum(Value x, std::vector<int64_t> dims) {
  if (!x || dims.empty()) return x;
  return Op("reduce_sum", {x}, {{"dims", std::move(dims)}});
}

Value Builder::ReduceMean(Value x, const std::vector<int64_t>& dims) {
  if (!x) return x;
  int64_t count = 1;
  for (int64_t dim : dims) count *= x.shape()[dim];
  // In 16 bits 1 / count is inexact, and the sum may overflow.
  const bool is_half = IsFloat(x.dtype()) && SizeOf(x.dtype()) == 2;
  const Value sum = ReduceSum(is_half ? Convert(x, DType::kF32) : x, dims);
  return sum ? Convert(Scale(sum, 1.0 / static_cast<double>(count)), x.dtype()) : sum;
}

Value Builder::AllReduce(Value x, std::string_view axis, ReduceKind kind) {
  return Op("all_reduce", {x}, {{"axis", std::string(axis)}, {"kind", std::string(ReduceKindName(kind))}});
}

Value Builder::AllGather(Value x, std::string_view axis, int64_t dim) {
  return Op("all_gather", {x}, {{"axis", std::string(axis)}, {"dim", dim}});
}

Value Builder::ReduceScatter(Value x, std::string_view axis, int64_t dim, ReduceKind kind) {
  return Op("reduce_scatter", {x},
            {{"axis", std::string(axis)}, {"dim", dim}, {"kind", std::string(ReduceKindName(kind))}});
}

Value Builder::Shard(Value x, std::string_view axis, int64_t dim) {
  return Op("shard", {x}, {{"axis", std::string(axis)}, {"dim", dim}});
}

}  // namespace lockstep
