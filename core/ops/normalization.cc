// Batch normalisation of N,C,spatial values. Statistics are per channel, over the batch and the spatial dimensions.

#include <cmath>

#include "core/builder.h"
#include "core/micro_batches.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

// --- Inference ---------------------------------------------------------------------------------------------------

// Checks x, and that the operands from 1 to `last` have one value per channel.
absl::Status CheckChannels(const InferContext& c, size_t last) {
  const TensorType& x = c.operand(0);
  if (!IsFloat(x.dtype)) return c.Error("C1") << "x is " << x << ", expected a floating-point dtype";
  if (x.shape.rank() < 2) return c.Error("C2") << "rank of x " << x << ", expected at least 2";
  const TensorType channels{x.dtype, {x.shape[1]}};
  for (size_t i = 1; i <= last; ++i) {
    if (c.operand(i) != channels) {
      return c.Error("C3") << c.op().operand_names()[i] << " is " << c.operand(i) << ", expected " << channels
                           << ", a value per channel of x " << x;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckEpsilon(const InferContext& c) {
  const double epsilon = c.attr<double>("epsilon");
  if (std::isfinite(epsilon) && epsilon >= 0) return absl::OkStatus();
  return c.Error("C4") << "epsilon is " << epsilon << ", expected a finite number, at least 0";
}

absl::Status CheckStatistics(const InferContext& c) {
  const auto& statistics = c.attr<std::string>("statistics");
  if (statistics != "global" && statistics != "rank") {
    return c.Error("C5") << "statistics = " << statistics << ", expected global or rank";
  }
  if (c.shape(0).num_elements() == 0) {
    return c.Error("C6") << "x is " << c.operand(0) << ", which has no elements to take a mean of";
  }
  const int64_t groups = c.attr<int64_t>("groups");
  if (groups < 1 || c.shape(0)[0] % groups != 0) {
    return c.Error("C7") << groups << " groups of the batch of x " << c.operand(0);
  }
  return absl::OkStatus();
}

absl::Status InferBatchNormInference(InferContext& c) {
  RETURN_IF_ERROR(CheckChannels(c, 4));
  RETURN_IF_ERROR(CheckEpsilon(c));
  return c.SetResult(c.operand(0));
}

absl::Status InferBatchNormTraining(InferContext& c) {
  RETURN_IF_ERROR(CheckChannels(c, 2));
  RETURN_IF_ERROR(CheckEpsilon(c));
  RETURN_IF_ERROR(CheckStatistics(c));
  return c.SetResults({c.operand(0), c.operand(1), c.operand(1)});
}

absl::Status InferBatchNormGrad(InferContext& c) {
  RETURN_IF_ERROR(CheckChannels(c, 3));
  RETURN_IF_ERROR(CheckEpsilon(c));
  RETURN_IF_ERROR(CheckStatistics(c));
  if (c.operand(4) != c.operand(0)) {
    return c.Error("C8") << "dy is " << c.operand(4) << ", expected " << c.operand(0) << ", the type of x";
  }
  return c.SetResults({c.operand(0), c.operand(1), c.operand(1)});
}

// The number of values per channel in each group.
int64_t Count(const Shape& x, int64_t groups) { return x.num_elements() / (x[1] * groups); }

absl::Status InferUnbiasedVariance(InferContext& c) {
  RETURN_IF_ERROR(CheckChannels(c, 1));
  RETURN_IF_ERROR(CheckStatistics(c));
  const int64_t groups = c.attr<int64_t>("groups");
  if (Count(c.shape(0), groups) < 2) {
    ErrorStream error = c.Error("C8");
    error << "x is " << c.operand(0) << ", one value per channel";
    if (groups > 1) error << " of each of " << groups << " groups of the batch";
    return error << ", whose variance cannot be estimated; training needs at least two";
  }
  return c.SetResult(c.operand(1));
}

// --- Evaluation --------------------------------------------------------------------------------------------------

// Part `index` of the batch, which is divided into `groups` equal parts.
struct Group {
  int64_t index = 0, groups = 1;
};

// Calls f(i) for the row-major position i of each element of x in one channel of one group.
template <typename F>
void ForEachOfChannel(const Shape& x, int64_t channel, Group group, F f) {
  int64_t inner = 1;
  for (int64_t dim = 2; dim < x.rank(); ++dim) inner *= x[dim];
  const int64_t samples = x[0] / group.groups;
  for (int64_t n = group.index * samples; n < (group.index + 1) * samples; ++n) {
    const int64_t first = (n * x[1] + channel) * inner;
    for (int64_t i = first; i < first + inner; ++i) f(i);
  }
}

// A float tensor converted to f64, in which evaluations compute.
class F64 {
 public:
  explicit F64(const Tensor& tensor) : tensor_(tensor.Converted(DType::kF64)) {}
  double operator[](int64_t i) const { return tensor_.data<double>()[static_cast<size_t>(i)]; }

 private:
  Tensor tensor_;
};

// Collects a result in f64 and stores it, rounded, when it goes out of scope.
class F64Result {
 public:
  explicit F64Result(Tensor& target) : target_(target), tensor_({DType::kF64, target.shape()}) {
    data_ = tensor_.mutable_data<double>();
  }
  F64Result(const F64Result&) = delete;
  F64Result& operator=(const F64Result&) = delete;
  ~F64Result() { target_ = tensor_.Converted(target_.dtype()); }
  double& operator[](int64_t i) { return data_[static_cast<size_t>(i)]; }

 private:
  Tensor& target_;
  Tensor tensor_;
  std::span<double> data_;
};

absl::Status EvalBatchNormInference(EvalContext& c) {
  const Shape& shape = c.operand(0).shape();
  const F64 x(c.operand(0)), scale(c.operand(1)), bias(c.operand(2)), mean(c.operand(3)), variance(c.operand(4));
  F64Result y(c.result());
  for (int64_t channel = 0; channel < shape[1]; ++channel) {
    const double factor = scale[channel] / std::sqrt(variance[channel] + c.attr<double>("epsilon"));
    ForEachOfChannel(shape, channel, {}, [&](int64_t i) { y[i] = (x[i] - mean[channel]) * factor + bias[channel]; });
  }
  return absl::OkStatus();
}

struct Moments {
  double mean = 0, variance = 0;
};

Moments MomentsOf(const F64& x, const Shape& shape, int64_t channel, Group group) {
  const auto count = static_cast<double>(Count(shape, group.groups));
  double sum = 0, squares = 0;
  ForEachOfChannel(shape, channel, group, [&](int64_t i) { sum += x[i]; });
  const double mean = sum / count;
  ForEachOfChannel(shape, channel, group, [&](int64_t i) { squares += (x[i] - mean) * (x[i] - mean); });
  return {mean, squares / count};
}

absl::Status EvalBatchNormTraining(EvalContext& c) {
  const Shape& shape = c.operand(0).shape();
  const F64 x(c.operand(0)), scale(c.operand(1)), bias(c.operand(2));
  F64Result y(c.result(0)), mean(c.result(1)), variance(c.result(2));
  const int64_t groups = c.attr<int64_t>("groups");
  for (int64_t channel = 0; channel < shape[1]; ++channel) {
    for (Group group{0, groups}; group.index < groups; ++group.index) {
      const Moments moments = MomentsOf(x, shape, channel, group);
      mean[channel] += moments.mean / static_cast<double>(groups);
      variance[channel] += moments.variance / static_cast<double>(groups);
      const double factor = scale[channel] / std::sqrt(moments.variance + c.attr<double>("epsilon"));
      ForEachOfChannel(shape, channel, group,
                       [&](int64_t i) { y[i] = (x[i] - moments.mean) * factor + bias[channel]; });
    }
  }
  return absl::OkStatus();
}

double UnbiasedFactor(const Shape& x, int64_t groups) {
  const auto count = static_cast<double>(Count(x, groups));
  return count / (count - 1);
}

absl::Status EvalUnbiasedVariance(EvalContext& c) {
  const double factor = UnbiasedFactor(c.operand(0).shape(), c.attr<int64_t>("groups"));
  const F64 variance(c.operand(1));
  F64Result result(c.result());
  for (int64_t channel = 0; channel < c.operand(1).num_elements(); ++channel)
    result[channel] = variance[channel] * factor;
  return absl::OkStatus();
}

absl::Status EvalBatchNormGrad(EvalContext& c) {
  const Shape& shape = c.operand(0).shape();
  const F64 x(c.operand(0)), scale(c.operand(1)), mean(c.operand(2)), variance(c.operand(3)), dy(c.operand(4));
  F64Result dx(c.result(0)), dscale(c.result(1)), dbias(c.result(2));
  const int64_t groups = c.attr<int64_t>("groups");
  const auto count = static_cast<double>(Count(shape, groups));
  for (int64_t channel = 0; channel < shape[1]; ++channel) {
    for (Group group{0, groups}; group.index < groups; ++group.index) {
      // The operands are the means over all groups; the moments of each group are computed again.
      const Moments moments =
          groups == 1 ? Moments{mean[channel], variance[channel]} : MomentsOf(x, shape, channel, group);
      const double rsqrt = 1 / std::sqrt(moments.variance + c.attr<double>("epsilon"));
      const auto normalised = [&](int64_t i) { return (x[i] - moments.mean) * rsqrt; };
      double sum = 0, weighted = 0;
      ForEachOfChannel(shape, channel, group, [&](int64_t i) {
        sum += dy[i];
        weighted += dy[i] * normalised(i);
      });
      dbias[channel] += sum;
      dscale[channel] += weighted;
      const double factor = scale[channel] * rsqrt;
      ForEachOfChannel(shape, channel, group,
                       [&](int64_t i) { dx[i] = factor * (dy[i] - sum / count - normalised(i) * weighted / count); });
    }
  }
  return absl::OkStatus();
}

// --- Decomposition and gradients ---------------------------------------------------------------------------------

// The mean and the variance per channel; with several groups, per group and channel. `centered` is x less the mean.
struct Statistics {
  Value mean, variance, centered;
};

// Expressions of values of one N,C,spatial shape and of values per channel [C]. With several groups the batch becomes
// two dimensions, group and sample, and statistics are per group and channel [groups, C].
struct ChannelMath {
  Builder& b;
  Shape x, shape;  // the shape of x, without and with the dimension of groups
  int64_t groups, channel;
  std::vector<int64_t> others;  // the dimensions of `shape` except groups and channels

  ChannelMath(Builder& builder, const Shape& x_shape, int64_t num_groups = 1)
      : b(builder), x(x_shape), shape(x_shape), groups(num_groups), channel(num_groups == 1 ? 1 : 2) {
    if (groups > 1) {
      std::vector<int64_t> dims = x.dims();
      dims[0] /= groups;
      dims.insert(dims.begin(), groups);
      shape = Shape(std::move(dims));
    }
    for (int64_t dim = groups == 1 ? 0 : 1; dim < shape.rank(); ++dim) {
      if (dim != channel) others.push_back(dim);
    }
  }
  Value InGroups(Value v) { return b.Reshape(v, shape); }
  Value OutOfGroups(Value v) { return b.Reshape(v, x); }
  Value Spread(Value v) {
    return v && v.shape().rank() == 2 ? b.BroadcastOver(v, shape, others) : b.BroadcastAlong(v, shape, channel);
  }
  // Broadcasts a value per channel to one per group and channel.
  Value PerGroup(Value v) { return groups == 1 ? v : b.BroadcastAlong(v, {groups, shape[channel]}, 1); }
  Value OverGroups(Value v) { return groups == 1 ? v : b.ReduceSum(v, {0}); }
  Value MeanOverGroups(Value v) { return groups == 1 ? v : b.ReduceMean(v, {0}); }
  Value Sum(Value v) { return b.ReduceSum(v, others); }
  Value Mean(Value v) { return b.ReduceMean(v, others); }
  Statistics StatisticsOf(Value x, bool one_pass);
  Value Rsqrt(Value variance, double epsilon) { return b.Rsqrt(b.AddScalar(variance, epsilon)); }
  Value Affine(Value centered, Value rsqrt, Value scale, Value bias) {
    return b.Add(b.Mul(centered, Spread(b.Mul(rsqrt, PerGroup(scale)))), Spread(bias));
  }
};

// In one pass, the variance is the mean of squares less the squared mean, which loses digits if the mean is large. In
// f64 the square of an f32 is exact. If the squared mean is k times the variance, the relative error is about
// k * 2^-52, while that of rounding x to f32 is about sqrt(k) * 2^-24: the former is less unless k is near 2^56.
Statistics ChannelMath::StatisticsOf(Value x, bool one_pass) {
  if (one_pass && x && x.dtype() != DType::kF64) {
    const Value wide = b.Convert(x, DType::kF64), mean = Mean(wide);
    const Value squares = Mean(b.Mul(wide, wide)), variance = b.Sub(squares, b.Mul(mean, mean));
    const Value rounded = b.Convert(mean, x.dtype());
    return {rounded, b.Convert(b.Max(variance, b.SplatLike(0, variance)), x.dtype()), b.Sub(x, Spread(rounded))};
  }
  const Value mean = Mean(x), centered = b.Sub(x, Spread(mean));
  return {mean, Mean(b.Mul(centered, centered)), centered};
}

std::vector<Value> DecomposeBatchNormInference(DecomposeContext& c) {
  ChannelMath math(c.b(), c.operand(0).shape());
  const Value centered = c.b().Sub(c.operand(0), math.Spread(c.operand(3)));
  return {math.Affine(centered, math.Rsqrt(c.operand(4), c.attr<double>("epsilon")), c.operand(1), c.operand(2))};
}

std::vector<Value> DecomposeBatchNormTraining(DecomposeContext& c) {
  ChannelMath math(c.b(), c.operand(0).shape(), c.attr<int64_t>("groups"));
  const Value x = math.InGroups(c.operand(0));
  const auto [mean, variance, centered] = math.StatisticsOf(x, c.attr<bool>("one_pass"));
  const Value rsqrt = math.Rsqrt(variance, c.attr<double>("epsilon"));
  const Value y = math.Affine(centered, rsqrt, c.operand(1), c.operand(2));
  return {math.OutOfGroups(y), math.MeanOverGroups(mean), math.MeanOverGroups(variance)};
}

std::vector<Value> DecomposeBatchNormGrad(DecomposeContext& c) {
  Builder& b = c.b();
  const int64_t groups = c.attr<int64_t>("groups");
  ChannelMath math(b, c.operand(0).shape(), groups);
  const Value x = math.InGroups(c.operand(0)), scale = c.operand(1), dy = math.InGroups(c.operand(4));
  // The operands are the means over all groups; the statistics of each group are computed again by exactly the ops of
  // the forward pass.
  const Statistics of_x = groups == 1 ? Statistics{c.operand(2), c.operand(3), b.Sub(x, math.Spread(c.operand(2)))}
                                      : math.StatisticsOf(x, c.attr<bool>("one_pass"));
  const Value rsqrt = math.Rsqrt(of_x.variance, c.attr<double>("epsilon"));
  const Value normalised = b.Mul(of_x.centered, math.Spread(rsqrt));
  const Value dbias = math.Sum(dy), dscale = math.Sum(b.Mul(dy, normalised));
  const double share = 1 / static_cast<double>(Count(c.operand(0).shape(), groups));
  const Value centered = b.Sub(dy, math.Spread(b.Scale(dbias, share)));
  const Value residual = b.Sub(centered, b.Mul(normalised, math.Spread(b.Scale(dscale, share))));
  const Value dx = b.Mul(residual, math.Spread(b.Mul(math.PerGroup(scale), rsqrt)));
  return {math.OutOfGroups(dx), math.OverGroups(dscale), math.OverGroups(dbias)};
}

std::vector<Value> DecomposeUnbiasedVariance(DecomposeContext& c) {
  return {c.b().Scale(c.operand(1), UnbiasedFactor(c.operand(0).shape(), c.attr<int64_t>("groups")))};
}

void BatchNormInferenceVjp(VjpContext& c) {
  Builder& b = c.b();
  const Value x = c.operand(0), scale = c.operand(1), dy = c.grad();
  ChannelMath math(b, x.shape());
  const Value rsqrt = math.Rsqrt(c.operand(4), c.attr<double>("epsilon"));
  const Value dbias = math.Sum(dy);
  // The sum of dy * (x - mean) * rsqrt; y is (x - mean) * rsqrt * scale + bias.
  const Value dscale = b.Mul(math.Sum(b.Mul(dy, b.Sub(x, math.Spread(c.operand(3))))), rsqrt);
  const Value factor = b.Mul(scale, rsqrt);
  c.Contribute(0, b.Mul(dy, math.Spread(factor)));
  c.Contribute(1, dscale);
  c.Contribute(2, dbias);
  c.Contribute(3, b.Neg(b.Mul(dbias, factor)));
  // d rsqrt(v + epsilon) / dv = -rsqrt^3 / 2
  c.Contribute(4, b.Scale(b.Mul(b.Mul(dscale, scale), b.Mul(rsqrt, rsqrt)), -0.5));
}

void BatchNormTrainingVjp(VjpContext& c) {
  if (c.grad(1) || c.grad(2)) {
    return c.Fail(
        "something that needs a gradient uses its results mean or variance, which are for running statistics");
  }
  if (!c.grad(0)) return;
  const std::vector<Value> d =
      c.b().Ops("batch_norm_grad", {c.operand(0), c.operand(1), c.result(1), c.result(2), c.grad(0)}, c.attributes());
  for (size_t i = 0; i < 3; ++i) c.Contribute(i, d[i]);
}

// --- Placement ---------------------------------------------------------------------------------------------------

// x and the result keep the split of x. The operands per channel are split if the channels of x are, else replicated.
void PlaceBatchNormInference(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const Placement& x = c.operand(0);
  const Placement of_x = x.is_split() ? x : Placement::Replicated();
  c.RequireAll(x.is_split(1) ? Placement::Split(0) : Placement::Replicated());
  c.Require(0, of_x);
  c.Result(of_x);
}

// The cases that batch_norm_training and batch_norm_grad place alike: no operand split, channels split, and local
// values. In any other case returns the split of x, else nullopt. has_x_shape[i] is true if operand i has the shape of
// x, and false if it has a value per channel.
std::optional<Placement> SplitOverSamples(PlacementContext& c, const std::vector<bool>& has_x_shape) {
  if (ops::PlaceLocal(c)) return std::nullopt;
  std::optional<Placement> split;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!split && has_x_shape[i] && c.operand(i).is_split()) split = c.operand(i);
  }
  if (split && split->dim() != 1) return split;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!split) c.Require(i, Placement::Replicated());
    else c.Require(i, has_x_shape[i] ? *split : Placement::Split(0));
  }
  c.Result(split ? Placement::Split(0) : Placement::Replicated());
  if (split) c.Result(0, *split);
  return std::nullopt;
}

// Each micro-batch has its own statistics, and the results are their means. Gradients per channel are sums.
void PlaceMicroBatches(PlacementContext& c, const Placement& split, const std::vector<bool>& has_x_shape) {
  const bool has_statistics = has_x_shape.size() > 3;  // true if the micro-batch's statistics are operands
  for (size_t i = 0; i < c.num_operands(); ++i)
    c.Require(i, has_x_shape[i] ? split : i == 1 || !has_statistics ? Placement::Replicated() : c.operand(i));
  c.Result(Placement::Partial(has_statistics ? ReduceKind::kSum : ReduceKind::kMean));
  c.Result(0, split);
}

// For statistics of each rank, along an axis that does not split the samples. A decomposition at this point would lose
// the groups of an axis that is placed later.
void ReplicateOperands(PlacementContext& c) {
  c.RequireAll(Placement::Replicated());
  c.Result(Placement::Replicated());
}

// Distributes the decomposition: its sums become partial, and its counts are those of the global batch. Statistics of
// each rank become statistics of one group for each rank, which need no communication.
void PlaceSplitSamples(PlacementContext& c, const std::vector<bool>& has_x_shape) {
  const std::optional<Placement> split = SplitOverSamples(c, has_x_shape);
  if (!split) return;
  if (c.mesh_axis().name == kMicroBatchAxis) return PlaceMicroBatches(c, *split, has_x_shape);
  if (c.attr<std::string>("statistics") == "global") return c.Decompose();
  if (split->dim() != 0) return ReplicateOperands(c);
  c.Decompose({{"statistics", std::string("global")}, {"groups", c.attr<int64_t>("groups") * c.axis_size()}});
}

void PlaceBatchNormTraining(PlacementContext& c) { PlaceSplitSamples(c, {true, false, false}); }

void PlaceBatchNormGrad(PlacementContext& c) { PlaceSplitSamples(c, {true, false, false, false, true}); }

// The result is a multiple of the variance, so a partial sum stays one. Only the shape of x is used, which determines
// the size of a group.
void PlaceUnbiasedVariance(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const Placement &x = c.operand(0), &variance = c.operand(1);
  const bool has_groups = x.is_split() && x.dim() != 1;
  if (has_groups && c.mesh_axis().name != kMicroBatchAxis) {
    if (c.attr<std::string>("statistics") == "global") return c.Decompose();
    if (x.dim() != 0) return ReplicateOperands(c);
    return c.Decompose({{"groups", c.attr<int64_t>("groups") * c.axis_size()}});
  }
  const bool by_channels = x.is_split() ? !has_groups : variance.is_split();
  if (by_channels) {
    c.Require(0, Placement::Split(1));
    c.Require(1, Placement::Split(0));
  } else if (!ops::IsLinearPartial(variance, c.dtype(1))) {
    c.Require(1, Placement::Replicated());
  }
  c.Result(c.required()[1]);
}

// The constraints of all ops of this file.
OpDef WithChannels(OpDef def) {
  return def.Constraint("C1", "x has a floating-point dtype")
      .Constraint("C2", "x is [N, C, ...] with at least 2 dimensions")
      .Constraint("C3", "the operands per channel have the dtype of x and shape [C]");
}

OpDef WithEpsilon(OpDef def) {
  return WithChannels(std::move(def))
      .Attr<double>("epsilon", "added to the variance, against division by zero")
      .Constraint("C4", "epsilon is finite and at least 0");
}

OpDef WithStatistics(OpDef def) {
  return std::move(def)
      .OptionalAttr<std::string>("statistics", "global",
                                 "global: over the whole batch on any number of ranks; rank: over each rank's part of "
                                 "it, which is one group for each rank")
      .OptionalAttr<int64_t>(
          "groups", 1,
          "the number of equal parts of the batch, in order, each normalised by its own statistics "
          "(ghost batch normalisation: Hoffer et al., 2017); mean and variance are the means of all parts")
      .Constraint("C5", "statistics is global or rank")
      .Constraint("C6", "x has at least one element")
      .Constraint("C7", "groups is at least 1 and divides the batch");
}

// The constraints of a normalisation by the statistics of its own operand.
OpDef ByOwnStatistics(OpDef def) {
  return WithStatistics(WithEpsilon(std::move(def)))
      .OptionalAttr<bool>("one_pass", false,
                          "the decomposition computes mean and variance in one pass over x, with sums in f64, unless x "
                          "is f64; set by passes/optimize/one_pass_statistics.h");
}

}  // namespace

//===-- batch_norm_inference ------------------------------------------------------------------------------------===//
const OpDef& BatchNormInferenceOp() {
  static const OpDef def =
      WithEpsilon(OpDef("batch_norm_inference")
                      .Operand("x")
                      .Operand("scale")
                      .Operand("bias")
                      .Operand("mean")
                      .Operand("variance"))
          .OptionalAttr<double>("momentum", 0.9,
                                "no effect here; the share of mean and variance that each step "
                                "keeps once passes/training/training_mode.h makes them running statistics")
          .Doc(
              "(x - mean) / sqrt(variance + epsilon) * scale + bias, with one mean, variance, "
              "scale and bias per channel.")
          .Trait(kOpaque)
          .Infer(InferBatchNormInference)
          .Eval(EvalBatchNormInference)
          .Precision(PrecisionRule::kComputesInF32)
          .Vjp(BatchNormInferenceVjp)
          .Decompose(DecomposeBatchNormInference)
          .Place(PlaceBatchNormInference);
  return def;
}

//===-- batch_norm_training -------------------------------------------------------------------------------------===//
const OpDef& BatchNormTrainingOp() {
  static const OpDef def =
      ByOwnStatistics(OpDef("batch_norm_training").Operand("x").Operand("scale").Operand("bias"))
          .Doc(
              "batch_norm_inference with the mean and the (biased) variance of each channel of x itself. These are "
              "results too, for running statistics; no gradient flows through them.")
          .Result("y")
          .Result("mean")
          .Result("variance")
          .Trait(kOpaque)
          .Infer(InferBatchNormTraining)
          .Eval(EvalBatchNormTraining)
          .Precision(PrecisionRule::kComputesInF32)
          .Vjp(BatchNormTrainingVjp)
          .Decompose(DecomposeBatchNormTraining)
          .Place(PlaceBatchNormTraining);
  return def;
}

//===-- batch_norm_grad -----------------------------------------------------------------------------------------===//
const OpDef& BatchNormGradOp() {
  static const OpDef def =
      ByOwnStatistics(
          OpDef("batch_norm_grad").Operand("x").Operand("scale").Operand("mean").Operand("variance").Operand("dy"))
          .Doc(
              "The gradients of batch_norm_training(x, scale, bias). dy is the gradient of its result y; mean and "
              "variance are its other results.")
          .Result("dx")
          .Result("dscale")
          .Result("dbias")
          .Constraint("C8", "dy has the type of x")
          .Trait(kOpaque)
          .Infer(InferBatchNormGrad)
          .Eval(EvalBatchNormGrad)
          .Precision(PrecisionRule::kComputesInF32)
          .NoGradient("second derivatives of batch normalisation are not needed by any optimizer here")
          .Decompose(DecomposeBatchNormGrad)
          .Place(PlaceBatchNormGrad);
  return def;
}

//===-- unbiased_variance ---------------------------------------------------------------------------------------===//
const OpDef& UnbiasedVarianceOp() {
  static const OpDef def =
      WithStatistics(WithChannels(OpDef("unbiased_variance").Operand("x").Operand("variance")))
          .Doc(
              "variance * n / (n - 1), where n is the number of values per channel in a group of x: the unbiased "
              "estimate (Bessel's correction) for running statistics, of the variance that is a result of "
              "batch_norm_training(x) with these statistics and groups. Only the shape of x is used.")
          .Trait(kOpaque)
          .Constraint("C8", "each group has at least 2 values per channel")
          .Infer(InferUnbiasedVariance)
          .Eval(EvalUnbiasedVariance)
          .NoGradient("no gradient flows through running statistics")
          .Decompose(DecomposeUnbiasedVariance)
          .Place(PlaceUnbiasedVariance);
  return def;
}

}  // namespace lockstep
