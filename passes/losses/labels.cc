// Losses of scores or log-probabilities [batch, classes, ...] against a class, or a probability of each class.

#include "passes/losses/loss_list.h"

namespace lockstep::passes::losses {
namespace {

OptionDef ClassWeights() {
  return OptionDef::MaybeFloats("class_weights", AtLeast(0),
                                "the weight of each class, one number for each; the mean is divided by the weights "
                                "of the labels");
}

OptionDef IgnoreIndex() {
  return OptionDef::MaybeInt("ignore_index", "a label that is ignored, in the loss and in the divisor of the mean");
}

absl::StatusOr<TensorType> LabelsOf(const TensorType& scores) {
  if (scores.shape.rank() < 2) return InvalidArgument() << "expected [batch, classes]";
  return TensorType{DType::kI64, scores.shape.Without({1})};
}

int64_t NumClasses(Formula x) { return x.value().shape()[1]; }

Formula WeightsOfClasses(const LossContext& c) {
  return c.list("class_weights", NumClasses(c.prediction()), "for each class");
}

// The labels, the weight of each (null if all are 1), and bools that are true for ignored labels (null if none are).
struct Labels {
  Formula classes, counts, is_ignored;

  // Returns x with 0 where labels are ignored, whatever x is there.
  Formula WithoutIgnored(Formula x) const { return is_ignored.value() && x.value() ? Where(is_ignored, 0, x) : x; }
};

Labels LabelsFor(const LossContext& c, const char* loss) {
  Builder& b = c.b();
  const Formula none(b, Value());
  Labels labels{c.target(), none, none};
  const Value given = labels.classes.value();
  if (c.has("ignore_index")) {
    const Value ignored = b.Constant(Tensor::Of<int64_t>(Shape(), {c.integer("ignore_index")}));
    labels.is_ignored = labels.classes == Formula(b, b.Broadcast(ignored, given.shape(), {}));
    labels.classes = labels.WithoutIgnored(labels.classes);
    labels.counts = {b, b.Splat(1, TensorType{c.prediction().value().dtype(), given.shape()})};
  }
  const AttributeMap range = {{"low", int64_t{0}},
                              {"high", NumClasses(c.prediction())},
                              {"what", "loss " + std::string(loss) + ": a label that is not ignore_index"}};
  labels.classes = {b, b.Op("within", {labels.classes.value()}, range)};
  if (c.has("class_weights")) {
    const Value weights = WeightsOfClasses(c).value();
    labels.counts = {b, b.Gather(weights, labels.classes.value(), 0)};
  }
  labels.counts = labels.WithoutIgnored(labels.counts);
  return labels;
}

// Returns the losses of labels. The mean is weighted by the weights of the labels' classes. `smoothing` is the share of
// the target that is divided equally among all classes.
LossElements LossOfLabels(const LossContext& c, Formula log_probabilities, const char* loss, double smoothing) {
  Builder& b = c.b();
  const Labels labels = LabelsFor(c, loss);
  const bool has_weights = c.has("class_weights");
  Formula losses = -Formula(b, b.Pick(log_probabilities.value(), labels.classes.value(), 1));
  if (has_weights) losses = losses * labels.counts;
  if (smoothing > 0) {
    Formula of_classes = log_probabilities;
    if (has_weights) of_classes = of_classes * Along(WeightsOfClasses(c), of_classes, 1);
    const double share = smoothing / static_cast<double>(NumClasses(c.prediction()));
    losses = losses * (1 - smoothing) - Sum(of_classes, 1) * share;
  }
  return {labels.WithoutIgnored(losses), labels.counts.value()};
}

// Returns the losses of targets that are probabilities. The mean is over the samples, whatever the class weights are.
LossElements LossOfProbabilities(const LossContext& c, Formula log_probabilities, double smoothing) {
  Formula target = c.target();
  if (smoothing > 0) target = target * (1 - smoothing) + smoothing / static_cast<double>(NumClasses(c.prediction()));
  Formula terms = log_probabilities * target;
  if (c.has("class_weights")) terms = terms * Along(WeightsOfClasses(c), terms, 1);
  return -Sum(terms, 1);
}

// Returns 1 where the label is among the k classes with the largest scores, else 0. Among equal scores the first counts
// as larger, and a NaN is larger than any number, as in lockstep.metrics.
LossElements IsAmongLargest(const LossContext& c) {
  Builder& b = c.b();
  const Formula scores = c.prediction();
  const Labels labels = LabelsFor(c, "accuracy");
  if (!labels.classes.value()) return labels.classes;
  const Shape& shape = scores.value().shape();
  const auto for_each_class = [&](Value x) { return b.BroadcastOver(x, shape, {1}); };
  const auto both = [&](Value x, Value y) { return b.Op("and", {x, y}); };
  const auto is_nan = [&](Value x) { return b.Op("not", {b.Compare(x, x, "eq")}); };
  const Value at_label = for_each_class(b.Pick(scores.value(), labels.classes.value(), 1));
  const Value score_is_nan = is_nan(scores.value()), label_is_nan = is_nan(at_label);
  const Value larger =
      b.Op("or", {b.Compare(scores.value(), at_label, "gt"), both(score_is_nan, b.Op("not", {label_is_nan}))});
  const Value equal = b.Op("or", {b.Compare(scores.value(), at_label, "eq"), both(score_is_nan, label_is_nan)});
  const Value is_first =
      b.Compare(b.Iota(TensorType{DType::kI64, shape}, 1), for_each_class(labels.classes.value()), "lt");
  const Value before = b.Op("or", {larger, both(equal, is_first)});
  const Formula count = Sum({b, b.Convert(before, scores.value().dtype())}, 1);
  const Formula is_right{b, b.Convert((count < static_cast<double>(c.integer("k"))).value(), scores.value().dtype())};
  return {labels.WithoutIgnored(is_right), labels.counts.value()};
}

// Returns the loss as one `softmax_cross_entropy` op; null if the options need more than it computes.
Value FusedCrossEntropy(const LossContext& c, LossReduction reduction) {
  if (c.flag("soft_targets") || c.has("class_weights") || c.has("ignore_index") || c.number("label_smoothing") != 0)
    return Value();
  const Value labels = c.target().value();
  const auto count = static_cast<double>(labels.shape().num_elements());  // of the global batch
  const double scale = reduction == LossReduction::kMean ? 1.0 / count : 1.0;
  return c.b().Op("softmax_cross_entropy", {c.prediction().value(), labels}, {{"scale", scale}});
}

}  // namespace

//===-- softmax_cross_entropy -----------------------------------------------------------------------------------===//
Loss SoftmaxCrossEntropy() {
  return {
      .name = "softmax_cross_entropy",
      .doc =
          "-log softmax(logits)[label] of each label.\n\n"
          "`exe(image=..., label=...)` gives the labels by the name of their input; a label out of range is an "
          "error that gives its position.\n\n"
          "With class_weights it is weight[label] times that, and the mean is divided by the weights of the labels. "
          "With soft_targets it is -sum(weight * target * log softmax(logits)) over the classes, and the mean is "
          "over the samples, whatever their weights. If all labels are ignored, the mean is NaN, and gradients "
          "are 0.",
      .predictions = {{"logits",
                       "a float result of the model, [batch, classes] or, with a label at each position, [batch, "
                       "classes, ...]",
                       "logits"}},
      .inputs = {{{"target",
                   "the name of the input that is added for the labels, i64[batch] or i64[batch, ...], each "
                   "in [0, classes); with soft_targets, for the probabilities, of the logits' dtype and shape",
                   "label"},
                  [](const TensorType& logits, const AttributeMap& options) -> absl::StatusOr<TensorType> {
                    ASSIGN_OR_RETURN(TensorType labels, LabelsOf(logits));
                    return std::get<bool>(options.find("soft_targets")->second) ? logits : labels;
                  }}},
      .options = {ClassWeights(), IgnoreIndex(),
                  OptionDef::Float("label_smoothing", 0.0, Between(0, 1),
                                   "the share of the target that is divided equally among all classes"),
                  OptionDef::Flag("soft_targets", false,
                                  "true if the target is a probability of each class instead of a label")},
      .check = [](const TensorType&, const AttributeMap& options) -> absl::Status {
        if (!std::get<bool>(options.find("soft_targets")->second) || !options.contains("ignore_index"))
          return absl::OkStatus();
        return InvalidArgument() << "ignore_index needs labels, and soft_targets are probabilities";
      },
      .elements = [](const LossContext& c) -> LossElements {
        Builder& b = c.b();
        const Formula log_softmax(b, b.Op("log_softmax", {c.prediction().value()}, {{"dim", int64_t{1}}}));
        const double smoothing = c.number("label_smoothing");
        if (c.flag("soft_targets")) return LossOfProbabilities(c, log_softmax, smoothing);
        return LossOfLabels(c, log_softmax, "softmax_cross_entropy", smoothing);
      },
      .whole = FusedCrossEntropy};
}

//===-- nll -----------------------------------------------------------------------------------------------------===//
Loss NegativeLogLikelihood() {
  return {.name = "nll",
          .doc =
              "-prediction[label] of each label, the negative log-likelihood of a model that gives logarithms of "
              "probabilities; with class_weights, weight[label] times that.\n\n"
              "If all labels are ignored, the mean is NaN, and gradients are 0.",
          .predictions = {{"prediction",
                           "a float result of the model, logarithms of probabilities, [batch, classes] or, with a "
                           "label at each position, [batch, classes, ...]"}},
          .inputs = {{{"target",
                       "the name of the input that is added for the labels, i64[batch] or i64[batch, ...], each "
                       "in [0, classes)",
                       "label"},
                      [](const TensorType& x, const AttributeMap&) { return LabelsOf(x); }}},
          .options = {ClassWeights(), IgnoreIndex()},
          .elements = [](const LossContext& c) { return LossOfLabels(c, c.prediction(), "nll", 0); }};
}

//===-- accuracy ------------------------------------------------------------------------------------------------===//
Loss Accuracy() {
  return {.name = "accuracy",
          .doc = "The share of labels that are among the k classes with the largest scores.",
          .predictions = {{"scores", "a float result of the model, [batch, classes] or [batch, classes, ...]"}},
          .inputs = {{{"target", "the name of the input that has the labels, i64[batch] or i64[batch, ...]", "label"},
                      [](const TensorType& x, const AttributeMap&) { return LabelsOf(x); }}},
          .options = {OptionDef::Int("k", 1, "the number of classes"), IgnoreIndex()},
          .elements = IsAmongLargest};
}

}  // namespace lockstep::passes::losses
