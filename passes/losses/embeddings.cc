// Losses that measure how close samples are: two samples that belong together or not, or three samples of which one
// pair must be closer than the other.

#include "passes/losses/loss_list.h"

namespace lockstep::passes::losses {
namespace {

LossArgument Embedding(std::string name, std::string what) {
  return {std::move(name), "a float result of the model, " + std::move(what)};
}

absl::Status CheckRows(const TensorType& x) {
  return x.shape.rank() == 2 ? absl::OkStatus() : InvalidArgument() << "expected [batch, size]";
}

// Returns the Euclidean norm along the last dimension. At 0 its gradient is 0.
Formula Norm(Formula x) {
  if (!x.value()) return x;
  const Formula square = Sum(Square(x), x.value().shape().rank() - 1);
  const Formula is_zero = square == 0;
  return Where(is_zero, 0, Sqrt(Where(is_zero, 1, square)));
}

}  // namespace

//===-- hinge_embedding -----------------------------------------------------------------------------------------===//
Loss HingeEmbedding() {
  return {.name = "hinge_embedding",
          .doc =
              "For each element, which is a distance: prediction if the target is 1, and max(0, margin - prediction) "
              "if it is -1.\n\nIt is PyTorch's hinge_embedding_loss.",
          .predictions = {PredictionOfAnyShape()},
          .inputs = {WantedValues("the targets: 1 for a pair that belongs together, -1 for one that does not")},
          .options = {OptionDef::Float("margin", 1.0, AnyFinite(),
                                       "the distance from which a pair that does not belong together costs nothing")},
          .elements = [](const LossContext& c) {
            const Formula distance = c.prediction(), y = c.target();
            const Formula apart = Where(y == 1, 0, Hinge(c.number("margin") - distance));
            const Formula together = Where(y == -1, 0, distance);
            return apart + together;
          }};
}

//===-- cosine_embedding ----------------------------------------------------------------------------------------===//
Loss CosineEmbedding() {
  return {
      .name = "cosine_embedding",
      .doc =
          "For each pair of rows, with the cosine of the angle between them: 1 - cosine if the target is 1, and "
          "max(0, cosine - margin) if it is -1.",
      .predictions = {Embedding("x1", "[batch, size]"), Embedding("x2", "of the type of x1")},
      .inputs = {{{"target",
                   "the name of the input that is added for the targets: 1 for a pair that belongs together, -1 for "
                   "one that does not, of the prediction's dtype, [batch]",
                   "target"},
                  [](const TensorType& x, const AttributeMap&) { return TensorType{x.dtype, x.shape.Without({1})}; }}},
      .options = {OptionDef::Float("margin", 0.0, AnyFinite(),
                                   "the cosine up to which a pair that does not belong together costs nothing")},
      .check = [](const TensorType& x, const AttributeMap&) { return CheckRows(x); },
      .elements =
          [](const LossContext& c) {
            const Formula x1 = c.prediction(0), x2 = c.prediction(1), y = c.target();
            constexpr double kEpsilon = 1e-12f;  // PyTorch's, which is a float
            const Formula square1 = Sum(Square(x1), 1) + kEpsilon;
            const Formula square2 = Sum(Square(x2), 1) + kEpsilon;
            const Formula lengths = Sqrt(square1 * square2);
            const Formula cosine = Sum(x1 * x2, 1) / lengths;
            const Formula together = Where(y == 1, 1 - cosine, 0);
            const Formula apart = Where(y == -1, Hinge(cosine - c.number("margin")), 0);
            return together + apart;
          }};
}

//===-- triplet_margin ------------------------------------------------------------------------------------------===//
Loss TripletMargin() {
  return {.name = "triplet_margin",
          .doc =
              "For each anchor: max(0, margin + |anchor - positive + eps| - |anchor - negative + eps|), with Euclidean "
              "distances along the last dimension. The positive should be closer to the anchor than the negative, by "
              "at least the margin.",
          .predictions = {Embedding("anchor", "[batch, ..., size]"), Embedding("positive", "of the anchor's type"),
                          Embedding("negative", "of the anchor's type")},
          .options = {OptionDef::Float("margin", 1.0, Above(0), "the required difference of the distances"),
                      OptionDef::Float("eps", 1e-6, AtLeast(0), "added to each difference, as PyTorch does")},
          .check = [](const TensorType& x, const AttributeMap&) -> absl::Status {
            if (x.shape.rank() >= 2) return absl::OkStatus();
            return InvalidArgument() << "expected [batch, ..., size]";
          },
          .elements =
              [](const LossContext& c) {
                const Formula anchor = c.prediction(0);
                const double eps = c.number("eps");
                const Formula to_positive = Norm(anchor - c.prediction(1) + eps);
                const Formula to_negative = Norm(anchor - c.prediction(2) + eps);
                return Hinge(to_positive - to_negative + c.number("margin"));
              }};
}

}  // namespace lockstep::passes::losses
