// Losses of sequences against shorter sequences of labels, without an alignment of the two.

#include <algorithm>
#include <cmath>

#include "core/ops/scan_parts.h"
#include "passes/losses/loss_list.h"

namespace lockstep::passes::losses {
namespace {

constexpr double kImpossible = -1e30;  // stands for log 0; finite, so that arithmetic with it gives no NaN

int64_t MaxLabels(const TensorType& x, const AttributeMap& options) {
  const auto given = options.find("max_target_length");
  return given == options.end() ? x.shape[1] : std::get<int64_t>(given->second);
}

absl::Status CheckCtc(const TensorType& x, const AttributeMap& options) {
  if (x.shape.rank() != 3) return InvalidArgument() << "expected [batch, time, classes]";
  const int64_t blank = std::get<int64_t>(options.find("blank")->second), labels = MaxLabels(x, options);
  if (blank < 0 || blank >= x.shape[2]) return InvalidArgument() << "blank " << blank << " is not one of its classes";
  if (labels < 0) return InvalidArgument() << "max_target_length is " << labels << ", expected at least 0";
  return absl::OkStatus();
}

LossInput Lengths(std::string name, std::string of) {
  return {{name, "the name of the input that is added for the number of " + of + " of each sample, i64[batch]", name},
          [](const TensorType& x, const AttributeMap&) { return TensorType{DType::kI64, Shape({x.shape[0]})}; }};
}

Formula InRange(Formula x, int64_t high, const char* what) {
  const AttributeMap range = {{"low", int64_t{0}}, {"high", high}, {"what", std::string("loss ctc: ") + what}};
  return {x.b(), x.b().Op("within", {x.value()}, range)};
}

Formula CountAlong(Builder& b, const Shape& shape, int64_t dim) {
  return {b, b.Iota(TensorType{DType::kI64, shape}, dim)};
}

// Returns x, [n, states], shifted so that each state has the value of the state `by` states before.
Formula Before(Formula x, int64_t by) {
  if (!x.value()) return x;
  Builder& b = x.b();
  const int64_t rows = x.value().shape()[0], states = x.value().shape()[1], kept = std::max<int64_t>(states - by, 0);
  return {b, b.Pad(b.Slice(x.value(), {0, 0}, {rows, kept}), {0, states - kept}, {0, 0}, kImpossible)};
}

Formula Larger(Formula x, Formula y) { return {x.b(), x.b().Max(x.value(), y.value())}; }

// Returns the labels with a blank before, between and behind them: i64[batch, 2 * labels + 1]. Labels beyond a sample's
// length have no effect and need not be valid.
Formula States(const LossContext& c, Formula target_lengths) {
  Builder& b = c.b();
  const Shape shape = c.target(0).value().shape();
  const int64_t batch = shape[0], labels = shape[1];
  const Formula blank(b, b.Broadcast(b.Constant(Tensor::Of<int64_t>(Shape(), {c.integer("blank")})), shape, {}));
  const Formula is_label = CountAlong(b, shape, 1) < Along(target_lengths, blank, 0);
  const Formula known = InRange(Where(is_label, c.target(0), blank), c.prediction().value().shape()[2], "a label");
  const Shape apart({batch, labels, 1});
  if (!known.value()) return known;
  const Value pairs = b.Concat({b.Reshape(blank.value(), apart), b.Reshape(known.value(), apart)}, 2);
  const Value last = b.Broadcast(b.Constant(Tensor::Of<int64_t>(Shape(), {c.integer("blank")})), Shape({batch, 1}), {});
  return {b, b.Concat({b.Reshape(pairs, Shape({batch, 2 * labels})), last}, 1)};
}

// Adds the loop of the forward algorithm and returns its last value: the logarithms of the probabilities of being in
// each state, [batch, states]. Each step computes them from those of the step before. A state can follow itself and the
// state before it, and a label can also follow the label before it.
absl::StatusOr<Value> Forward(const LossContext& c, Formula start, Formula emitted, Formula goes_on, Formula skips) {
  Graph body("step");
  Builder bb(body);
  const auto input = [&](const char* name, const TensorType& type) -> Formula {
    const absl::StatusOr<Value> value = body.AddInput(name, type);
    if (!value.ok()) bb.Fail(value.status());
    return {bb, value.ok() ? *value : Value()};
  };
  const TensorType type = start.value().type();
  const Formula alpha = input("alpha", type), emission = input("emission", type);
  const Formula is_on = input("goes_on", skips.value().type()), may_skip = input("skips", skips.value().type());
  RETURN_IF_ERROR(bb.status());
  const Formula one = Before(alpha, 1), two = Where(may_skip, Before(alpha, 2), kImpossible);
  const Formula largest = Larger(alpha, Larger(one, two));
  const Formula sum = Exp(alpha - largest) + Exp(one - largest) + Exp(two - largest);
  const Formula next = Where(is_on, largest + Log(sum) + emission, alpha);
  RETURN_IF_ERROR(bb.status());
  ScanParts parts;
  parts.carried = {{start.value(), alpha.value()}};
  parts.scanned = {{emitted.value(), emission.value()}, {goes_on.value(), is_on.value()}};
  parts.constants = {{skips.value(), may_skip.value()}};
  parts.next_carried = {next.value()};
  const int64_t length = emitted.value().shape()[0];
  ASSIGN_OR_RETURN(NodeSpec spec, MakeScan(body, parts, length, /*reverse=*/false, c.b().source()));
  const Value last = c.b().Op("scan", std::move(spec.operands), std::move(spec.attributes));
  RETURN_IF_ERROR(c.b().status());
  return last;
}

// Returns -log of the sum of the probabilities of all alignments, [batch].
absl::StatusOr<Formula> NegativeLogOfAlignments(const LossContext& c, Formula target_lengths) {
  Builder& b = c.b();
  const Formula x = c.prediction();
  const Shape& shape = x.value().shape();
  const Formula states = States(c, target_lengths);
  RETURN_IF_ERROR(b.status());
  const int64_t batch = shape[0], time = shape[1], count = states.value().shape()[1];
  const Shape of_states({batch, count}), over_time({time, batch, count});
  const Formula position = CountAlong(b, of_states, 1);
  const Formula possible = {b, b.Max(x.value(), b.SplatLike(kImpossible, x.value()))};
  const Formula emitted(b, b.Transpose(b.Gather(possible.value(), states.value(), 2, 1), {1, 0, 2}));
  const Formula input_lengths = InRange(c.target(1), time + 1, "an input length");
  const Formula goes_on = CountAlong(b, over_time, 0) < Along(input_lengths, emitted, 1);
  // A step can skip the blank between two labels unless they are equal. Blanks are at the even states.
  const Value two_before =
      count > 2
          ? b.Concat({b.Slice(states.value(), {0, 0}, {batch, 2}), b.Slice(states.value(), {0, 0}, {batch, count - 2})},
                     1)
          : states.value();
  const Formula skips(b, b.Compare(states.value(), two_before, "ne"));
  const Formula nowhere(b, b.Splat(kImpossible, TensorType{x.value().dtype(), of_states}));
  const Formula start = Where(position == 0, 0, nowhere);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Value last, Forward(c, start, emitted, goes_on, skips));
  // An alignment ends in the last label or in the blank behind it.
  const Formula end = Along(target_lengths * 2, position, 0);
  const Formula is_end(b, b.Op("or", {(position == end).value(), (position == end - 1).value()}));
  const Formula ends = Where(is_end, Formula(b, last), kImpossible);
  const Formula largest(b, b.ReduceMax(ends.value(), {1}));
  return -(largest + Log(Sum(Exp(ends - Along(largest, ends, 0)), 1)));
}

}  // namespace

//===-- ctc -----------------------------------------------------------------------------------------------------===//
Loss Ctc() {
  return {
      .name = "ctc",
      .doc =
          "Connectionist temporal classification: -log of the probability of the labels of each sample, summed over "
          "all alignments with a longer sequence, with blanks between the labels.\n\n"
          "The mean is of the losses divided by the number of the sample's labels, or by 1 if it has none. Unlike in "
          "PyTorch, the batch is the first dimension. If a sequence is too short for its labels, its loss is "
          "infinite and its gradient is NaN, as in PyTorch; with zero_infinity both are 0.",
      .predictions = {{"prediction",
                       "a float result of the model, logarithms of probabilities, [batch, time, classes]"}},
      .inputs = {{{"target",
                   "the name of the input that is added for the labels, i64[batch, max_target_length]; labels "
                   "beyond a sample's length are ignored",
                   "target"},
                  [](const TensorType& x, const AttributeMap& options) {
                    return TensorType{DType::kI64, Shape({x.shape[0], MaxLabels(x, options)})};
                  }},
                 Lengths("input_lengths", "steps in time"),
                 Lengths("target_lengths", "labels")},
      .options = {OptionDef::Int("blank", 0, "the class that stands for no label"),
                  OptionDef::MaybeInt("max_target_length",
                                      "the maximum number of labels of a sample; by default the number of steps"),
                  OptionDef::Flag("zero_infinity", false, "true if an infinite loss counts as 0")},
      .check = CheckCtc,
      .elements = [](const LossContext& c) -> LossElements {
        const int64_t labels = c.target(0).value().shape()[1];
        const Formula lengths = InRange(c.target(2), labels + 1, "a target length");
        const absl::StatusOr<Formula> losses = NegativeLogOfAlignments(c, lengths);
        if (!losses.ok()) {
          c.b().Fail(losses.status());
          return Formula(c.b(), Value());
        }
        const Formula is_impossible = -*losses < kImpossible / 2;
        // This is infinite if is_impossible, with the gradient 0 / 0.
        const Formula infinity = -Log(Where(is_impossible, *losses * 0, 1));
        const Formula possible = c.flag("zero_infinity") ? Where(is_impossible, 0, *losses) : *losses + infinity;
        if (c.text("reduction") != "mean") return possible;
        const Formula counts = Where(lengths < 1, 1, lengths);
        return possible / Formula(c.b(), c.b().Convert(counts.value(), possible.value().dtype()));
      }};
}

}  // namespace lockstep::passes::losses
