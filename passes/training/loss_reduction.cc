#include "passes/training/loss_reduction.h"

#include <numeric>

namespace lockstep::passes {
namespace {

std::vector<int64_t> AllDims(const Shape& shape) {
  std::vector<int64_t> dims(static_cast<size_t>(shape.rank()));
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

Value SumOf(Builder& b, Value x) { return x ? b.ReduceSum(x, AllDims(x.shape())) : x; }

// Returns the weight of each element; null if there are no weights.
Value WeightOfElements(Builder& b, const LossWeights& weights, const Shape& shape) {
  const Value samples = weights.samples ? b.Broadcast(weights.samples, shape, {0}) : Value();
  if (!weights.elements || !samples) return weights.elements ? weights.elements : samples;
  return b.Mul(samples, weights.elements);
}

// Returns x * weight, and 0 where the weight is 0, even if x is infinite there.
Value TimesWeight(Builder& b, Value x, Value weight) {
  if (!x || !weight) return x;
  const Formula w(b, weight);
  return Where(w == 0, 0, Formula(b, x) * w).value();
}

// Returns the sum of the weights of all elements of losses of this shape.
Value CountOf(Builder& b, const LossWeights& weights, Value of_elements, const Shape& shape) {
  if (weights.elements || shape.rank() == 1) return SumOf(b, of_elements);
  const int64_t of_a_sample = shape.Without({0}).num_elements();
  const Value samples = SumOf(b, weights.samples);
  return samples ? b.Scale(samples, static_cast<double>(of_a_sample)) : samples;
}

}  // namespace

std::vector<OptionDef> ReductionOptions(bool has_batchmean) {
  std::vector<std::string> reductions = {"mean", "sum"};
  if (has_batchmean) reductions.emplace_back("batchmean");
  return {
      OptionDef::Text("reduction", std::move(reductions),
                      std::string("over the global batch: \"mean\", the sum of the losses divided by the number of "
                                  "losses that count, or by the sum of their weights; ") +
                          (has_batchmean ? "\"batchmean\", the sum divided by the number of samples; " : "") +
                          "or \"sum\""),
      OptionDef::MaybeText("sample_weight",
                           "the name of an input that is added for a weight of each sample, of the prediction's "
                           "dtype, [batch]; a sample of weight 0 is ignored, as if it were not in the batch"),
      OptionDef::MaybeText("element_weight",
                           "the name of an input that is added for a weight of each element over which the mean is "
                           "taken, of the prediction's dtype"),
  };
}

LossReduction ReductionOf(const AttributeMap& options) {
  const auto& name = std::get<std::string>(options.find("reduction")->second);
  return name == "sum" ? LossReduction::kSum : name == "mean" ? LossReduction::kMean : LossReduction::kBatchMean;
}

LossSum SumLosses(Builder& b, const LossElements& elements, const LossWeights& weights, LossReduction reduction) {
  if (!elements.losses) return {};
  const Shape& shape = elements.losses.shape();
  const Value weight = WeightOfElements(b, weights, shape);
  const Value sum = SumOf(b, TimesWeight(b, elements.losses, weight));
  const auto number = [&](int64_t count) {
    return b.Splat(static_cast<double>(count), TensorType{elements.losses.dtype(), Shape()});
  };
  if (reduction == LossReduction::kSum || !sum) return {sum, {}};
  if (reduction == LossReduction::kBatchMean)
    return {sum, weights.samples ? SumOf(b, weights.samples) : number(shape[0])};
  if (elements.counts) return {sum, SumOf(b, TimesWeight(b, elements.counts, weight))};
  return {sum, weight ? CountOf(b, weights, weight, shape) : number(shape.num_elements())};
}

Value ReduceLosses(Builder& b, const LossElements& elements, const LossWeights& weights, LossReduction reduction) {
  if (!elements.losses) return Value();
  const Shape& shape = elements.losses.shape();
  const bool is_mean = reduction == LossReduction::kMean, weighs = weights.samples || weights.elements;
  if (is_mean && !weighs && !elements.counts) return b.ReduceMean(elements.losses, AllDims(shape));
  if (reduction == LossReduction::kBatchMean && !weights.samples)
    return b.Scale(SumOf(b, elements.losses), 1.0 / static_cast<double>(shape[0]));
  const LossSum loss = SumLosses(b, elements, weights, reduction);
  return loss.count ? b.Div(loss.sum, loss.count) : loss.sum;
}

}  // namespace lockstep::passes
