#include "core/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "core/attributes.h"
#include "core/op_def.h"
#include "core/philox.h"

namespace lockstep {
namespace {

const TensorType kCount = {DType::kI64, Shape()};

// --- The states ------------------------------------------------------------------------------------------------------

absl::StatusOr<Value> FindState(const Graph& graph, std::string_view name) {
  const Input* input = graph.FindInput(name);
  if (input == nullptr) return Value();
  if (!input->is_state || input->value.type() != kCount) {
    return InvalidArgument() << (input->is_state ? "state" : "input") << " %" << name << " is " << input->value.type()
                             << "; random numbers need a state of that name, " << kCount;
  }
  return input->value;
}

// Adds the state %random/step, whose next value is one more.
absl::StatusOr<Value> AddStep(Builder& b) {
  Graph& graph = b.graph();
  ASSIGN_OR_RETURN(const Value step, graph.AddInput(std::string(kRandomStep), kCount, /*is_state=*/true));
  const std::string source = b.source();
  b.set_source("random");
  const Value next = b.AddScalar(step, 1);
  b.set_source(source);
  RETURN_IF_ERROR(b.status());
  graph.SetName(next, std::string(kRandomStep) + ".next");
  RETURN_IF_ERROR(graph.AddStateResult(kRandomStep, next));
  return step;
}

struct States {
  Value seed, step;
};

absl::StatusOr<States> FindOrAddStates(Builder& b) {
  States states;
  ASSIGN_OR_RETURN(states.seed, FindState(b.graph(), kRandomSeed));
  ASSIGN_OR_RETURN(states.step, FindState(b.graph(), kRandomStep));
  if (!states.seed) {
    ASSIGN_OR_RETURN(states.seed, b.graph().AddInput(std::string(kRandomSeed), kCount, /*is_state=*/true));
  }
  if (!states.step) {
    ASSIGN_OR_RETURN(states.step, AddStep(b));
  }
  return states;
}

// One more than the largest stream in `graph` and its regions.
int64_t NextStream(const Graph& graph) {
  int64_t next = 0;
  for (const Node& node : graph.nodes()) {
    if (node.Is("random_bits")) next = std::max(next, node.attr<int64_t>("stream") + 1);
    for (const auto& [name, value] : node.attributes()) {
      if (const auto* region = std::get_if<Region>(&value)) next = std::max(next, NextStream(region->graph()));
    }
  }
  return next;
}

// --- Positions -------------------------------------------------------------------------------------------------------

// The row-major position of each element in the whole tensor. Built of an iota for each dimension, so that a rank that
// holds a slice of the tensor computes the positions of that slice from a slice of the iota.
Value PlacesOf(Builder& b, const Shape& shape) {
  const TensorType type = {DType::kI64, shape};
  const std::vector<int64_t> strides = shape.Strides();
  Value places;
  for (int64_t dim = 0; dim < shape.rank(); ++dim) {
    if (shape[dim] == 1) continue;
    const Value count = b.Iota({DType::kI64, {shape[dim]}}, 0);
    const int64_t stride = strides[static_cast<size_t>(dim)];
    const Value at = stride == 1 ? count : b.Scale(count, static_cast<double>(stride));
    const Value along = b.BroadcastAlong(at, shape, dim);
    places = places ? b.Add(places, along) : along;
  }
  return places ? places : b.Splat(0, type);
}

// --- Numbers ---------------------------------------------------------------------------------------------------------

// The dtype in which draws for `dtype` are computed.
DType WideOf(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// The largest number of `dtype` below `bound`, but at least `low`.
double Below(double bound, double low, DType dtype) {
  const auto round = [dtype](double x) { return Tensor::Scalar(dtype, x).At(0); };
  double below = round(bound);
  for (double step = std::numeric_limits<double>::denorm_min(); below >= bound; step *= 2) below = round(bound - step);
  return std::max(below, round(low));
}

}  // namespace

bool RemoveUnusedRandomStates(Graph& graph) {
  const Input* seed = graph.FindInput(kRandomSeed);
  if (seed == nullptr || !seed->is_state || graph.IsUsed(seed->value)) return false;
  const Input* step = graph.FindInput(kRandomStep);
  LOCKSTEP_CHECK(step != nullptr) << "added together";
  const Value count = step->value;
  if (count.node->users().size() > 1) return false;
  LOCKSTEP_CHECK(graph.RemoveInput(kRandomSeed).ok());
  for (size_t i = graph.results().size(); i-- > 0;) {
    if (!graph.results()[i].is_state || graph.results()[i].name != kRandomStep) continue;
    Node* const next = graph.results()[i].value.node;
    graph.RemoveResult(i);
    if (!graph.IsUsed(next->result())) graph.Erase(next);
  }
  if (!graph.IsUsed(count)) LOCKSTEP_CHECK(graph.RemoveInput(kRandomStep).ok());
  return true;
}

RandomDraw::RandomDraw(Builder& b, Shape shape, uint64_t salt) : b_(b), shape_(std::move(shape)) {
  if (!b.status().ok()) return;
  absl::StatusOr<States> states = FindOrAddStates(b);
  if (!states.ok()) {
    b.Fail(states.status());
    return;
  }
  stream_ = NextStream(b.graph());
  Value seed = states->seed;
  if (salt != 0) seed = b.Op("xor", {seed, b.Constant(Tensor::Of<int64_t>({}, {static_cast<int64_t>(salt)}))});
  seed_ = b.Broadcast(seed, shape_, {});
  step_ = b.Broadcast(states->step, shape_, {});
  index_ = PlacesOf(b, shape_);
}

Value RandomDraw::Word(int64_t word) {
  return b_.Op("random_bits", {seed_, step_, index_}, {{"stream", stream_}, {"word", word}});
}

Value RandomDraw::Unit(DType dtype, int64_t word) {
  const TensorType words = {DType::kU32, shape_};
  const auto high_bits = [&](int64_t at, int dropped) {
    return b_.Convert(b_.Op("shift_right", {Word(at), b_.Splat(dropped, words)}), dtype);
  };
  if (dtype == DType::kF32) return b_.Scale(high_bits(word, 8), 0x1p-24);
  return b_.Add(b_.Scale(high_bits(word, 5), 0x1p-27), b_.Scale(high_bits(word + 1, 6), 0x1p-53));
}

Value RandomDraw::Above0(DType dtype, int64_t word) {
  const Value high = b_.Scale(b_.Convert(Word(word), dtype), 0x1p-32);
  if (dtype == DType::kF32) return b_.AddScalar(high, 0x1p-33);
  return b_.Add(high, b_.AddScalar(b_.Scale(b_.Convert(Word(word + 1), dtype), 0x1p-64), 0x1p-65));
}

Value RandomUniform(Builder& b, const TensorType& type, double low, double high, uint64_t salt) {
  const DType wide = WideOf(type.dtype);
  RandomDraw draw(b, type.shape, salt);
  // low + (high - low) * u, written as low * (1 - u) + high * u, which cannot overflow.
  const Value u = draw.Unit(wide, 0);
  const Value rest = b.Sub(b.SplatLike(1.0, u), u);
  const Value mixed = b.Add(b.Scale(rest, low), b.Scale(u, high));
  const Value x = b.Convert(mixed, type.dtype);
  return b.Min(b.Max(x, b.SplatLike(low, x)), b.SplatLike(Below(high, low, type.dtype), x));
}

Value RandomNormal(Builder& b, const TensorType& type, double mean, double scale, uint64_t salt) {
  const DType wide = WideOf(type.dtype);
  RandomDraw draw(b, type.shape, salt);
  const Value radius = b.Sqrt(b.Scale(b.Log(draw.Above0(wide, 0)), -2.0));
  const Value angle = b.Scale(draw.Unit(wide, wide == DType::kF32 ? 1 : 2), 2 * std::numbers::pi);
  const Value normal = b.Mul(radius, b.Unary("cos", angle));
  return b.Convert(b.AddScalar(b.Scale(normal, scale), mean), type.dtype);
}

Value RandomBernoulli(Builder& b, Value probability, uint64_t salt) {
  if (!probability) return Value();
  const Value p = b.Convert(probability, WideOf(probability.dtype()));
  RandomDraw draw(b, p.shape(), salt);
  return b.Compare(draw.Unit(p.dtype(), 0), p, "lt");
}

Value RandomMultinomial(Builder& b, Value logits, int64_t samples, uint64_t salt) {
  if (!logits) return Value();
  const DType wide = WideOf(logits.dtype());
  const int64_t rows = logits.shape()[0], classes = logits.shape()[1];
  const Value likely = b.Op("softmax", {b.Convert(logits, wide)}, {{"dim", int64_t{1}}});
  const Value up_to = b.Op("cumulative_sum", {likely}, {{"dim", int64_t{1}}});
  if (!b.status().ok()) return Value();
  // The drawn class is the number of classes whose cumulative sum is at most u times the total. u is at most 1 - 2^-24,
  // so the product is less than the total even when rounded, and the class is always valid.
  RandomDraw draw(b, {rows, samples}, salt);
  const Value all = b.Reshape(b.Slice(up_to, {0, classes - 1}, {rows, classes}), {rows});
  const Value u = draw.Unit(wide, 0);
  if (!b.status().ok()) return Value();
  const Shape each = {rows, samples, classes};
  const Value drawn = b.Broadcast(b.Mul(u, b.BroadcastAlong(all, u.shape(), 0)), each, {0, 1});
  const Value is_below = b.Compare(b.Broadcast(up_to, each, {0, 2}), drawn, "le");
  return b.ReduceSum(b.Convert(is_below, DType::kI64), {2});
}

Dropped RandomDropout(Builder& b, Value x, Value ratio, uint64_t salt) {
  if (!x || !ratio) return {};
  const DType dtype = ratio.dtype();
  const Value zero = b.SplatLike(0.0, ratio), one = b.SplatLike(1.0, ratio);
  const Value nan = b.SplatLike(std::numeric_limits<double>::quiet_NaN(), ratio);
  const Value is_valid = b.Op("and", {b.Compare(ratio, zero, "ge"), b.Compare(ratio, one, "le")});
  const Value valid = b.Select(is_valid, ratio, nan);
  // For a ratio of 1 the scale is 0, not infinity: infinity times zero would be NaN, also in the gradient.
  const Value scale = b.Select(b.Compare(valid, one, "eq"), zero, b.Div(one, b.Sub(one, valid)));
  RandomDraw draw(b, x.shape(), salt);
  const Value u = draw.Unit(dtype, 0);
  const Value is_dropped = b.Compare(u, b.Broadcast(valid, x.shape(), {}), "lt");
  const Value mask = b.Op("not", {is_dropped});
  const Value scaled = b.Mul(x, b.Broadcast(b.Convert(scale, x.dtype()), x.shape(), {}));
  return {b.Select(mask, scaled, b.SplatLike(0.0, x)), mask};
}

}  // namespace lockstep
