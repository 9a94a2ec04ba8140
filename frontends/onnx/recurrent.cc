// RNN, GRU and LSTM: a scan for each direction, whose body is the cell. The products of the inputs with their weights
// are in the body, so that a split batch stays split. A backend merges those of all steps into one product.

#include <utility>

#include "core/builder.h"
#include "core/ops/scan_parts.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/recurrent_activations.h"
#include "frontends/onnx/unroll.h"

namespace lockstep {
namespace {

enum class CellKind { kRnn, kGru, kLstm };

// The attributes and inputs of a node. Dimension 0 of x is the sequence. Dimension 0 of the values that each direction
// has separately, such as weights, is the direction.
struct RecurrentForm {
  CellKind kind = CellKind::kRnn;
  int64_t gates = 1, directions = 1, length = 0, batch = 0, hidden = 0;
  bool first_is_reverse = false, batch_first = false;
  bool linear_before_reset = false, input_forget = false;
  double clip = 0;                      // 0 means none
  std::vector<Activation> activations;  // first direction's, then second's
  Value x, w, r, bias, peepholes, initial_h, initial_c;
  Value mask;  // bool [length, batch], true for steps within the sequence; null if all are
};

// Returns an error if input i is present and its extents are not `dims`.
absl::Status CheckShape(OnnxNode& n, int i, const std::vector<int64_t>& dims) {
  if (!n.has_input(i)) return absl::OkStatus();
  const Value x = n.input(i);
  RETURN_IF_ERROR(n.b().status());
  if (x.shape() == Shape(dims)) return absl::OkStatus();
  return n.Error() << "input " << i << " is " << x.type() << ", expected " << Shape(dims);
}

absl::Status ReadDirection(OnnxNode& n, RecurrentForm& form) {
  const std::string direction = n.String("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    return n.Error() << "attribute direction is '" << direction << "', expected forward, reverse or bidirectional";
  form.directions = direction == "bidirectional" ? 2 : 1;
  form.first_is_reverse = direction == "reverse";
  return absl::OkStatus();
}

absl::Status ReadAttributes(OnnxNode& n, RecurrentForm& form) {
  RETURN_IF_ERROR(ReadDirection(n, form));
  form.batch_first = n.Flag("layout", false);
  form.clip = n.Float("clip", 0.0);
  if (form.clip < 0) return n.Error() << "attribute clip is " << form.clip << ", expected a positive number";
  n.Ignore("output_sequence");  // before opset 7: true if output 0 is used
  std::vector<std::string> defaults = {"Tanh"};
  if (form.kind == CellKind::kGru) defaults = {"Sigmoid", "Tanh"};
  if (form.kind == CellKind::kLstm) defaults = {"Sigmoid", "Tanh", "Tanh"};
  if (form.kind == CellKind::kGru) form.linear_before_reset = n.Flag("linear_before_reset", false);
  if (form.kind == CellKind::kLstm) form.input_forget = n.Flag("input_forget", false);
  ASSIGN_OR_RETURN(form.activations, ReadActivations(n, defaults, form.directions));
  return n.b().status();
}

// Sets the mask from input 4, the lengths of the sequences. The mask stays null if all have the full length.
absl::Status ReadLengths(OnnxNode& n, RecurrentForm& form) {
  RETURN_IF_ERROR(CheckShape(n, 4, {form.batch}));
  if (!n.has_input(4)) return absl::OkStatus();
  Builder& b = n.b();
  const Value lengths = n.input(4);
  RETURN_IF_ERROR(b.status());
  if (!IsInteger(lengths.dtype())) return n.Error() << "input 4 (sequence_lens) is " << lengths.type();
  if (const Tensor* known = n.DataIndependentInput(4)) {
    bool all_whole = true;
    for (int64_t i = 0; i < known->num_elements(); ++i) {
      if (known->At(i) < 0 || known->At(i) > static_cast<double>(form.length)) {
        return n.Error() << "input 4 (sequence_lens) has " << known->At(i) << ", expected 0 to " << form.length;
      }
      all_whole = all_whole && known->At(i) == static_cast<double>(form.length);
    }
    if (all_whole) return absl::OkStatus();
  }
  const TensorType type{lengths.dtype(), Shape({form.length, form.batch})};
  form.mask = b.Compare(b.Iota(type, 0), b.BroadcastAlong(lengths, type.shape, 1), "lt");
  return b.status();
}

absl::StatusOr<RecurrentForm> ReadRecurrentForm(OnnxNode& n, CellKind kind) {
  RecurrentForm form;
  form.kind = kind;
  form.gates = kind == CellKind::kRnn ? 1 : kind == CellKind::kGru ? 3 : 4;
  RETURN_IF_ERROR(ReadAttributes(n, form));
  for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(n.RequireRank(i, 3));
  Builder& b = n.b();
  const auto in_order = [&](int i) {
    const Value x = n.input(i);
    return form.batch_first && x ? b.Transpose(x, {1, 0, 2}) : x;
  };
  form.x = in_order(0);
  form.w = n.input(1);
  form.r = n.input(2);
  RETURN_IF_ERROR(b.status());
  if (form.x.shape().rank() != 3 || form.r.shape().rank() != 3 || !IsFloat(form.x.dtype()))
    return n.Error() << "input 0 is " << n.type(0) << " and input 2 is " << n.type(2) << ", expected floats of rank 3";
  form.length = form.x.shape()[0];
  form.batch = form.x.shape()[1];
  form.hidden = n.Int("hidden_size", form.r.shape()[2]);
  const int64_t rows = form.gates * form.hidden, directions = form.directions;
  RETURN_IF_ERROR(CheckShape(n, 1, {directions, rows, form.x.shape()[2]}));
  RETURN_IF_ERROR(CheckShape(n, 2, {directions, rows, form.hidden}));
  RETURN_IF_ERROR(CheckShape(n, 3, {directions, 2 * rows}));
  RETURN_IF_ERROR(ReadLengths(n, form));
  const std::vector<int64_t> state = form.batch_first ? std::vector<int64_t>{form.batch, directions, form.hidden}
                                                      : std::vector<int64_t>{directions, form.batch, form.hidden};
  RETURN_IF_ERROR(CheckShape(n, 5, state));
  if (n.has_input(3)) form.bias = n.input(3);
  if (n.has_input(5)) form.initial_h = in_order(5);
  if (kind == CellKind::kLstm) {
    RETURN_IF_ERROR(CheckShape(n, 6, state));
    RETURN_IF_ERROR(CheckShape(n, 7, {directions, 3 * form.hidden}));
    if (n.has_input(6)) form.initial_c = in_order(6);
    if (n.has_input(7)) form.peepholes = n.input(7);
  }
  RETURN_IF_ERROR(b.status());
  return form;
}

// The scan of one direction.
class Recurrence {
 public:
  Recurrence(OnnxNode& n, const RecurrentForm& form, int64_t direction)
      : n_(n), form_(form), direction_(direction), body_(Name()), b_(body_, nullptr, n.source()) {}

  // y: the stacked outputs, [length, batch, hidden]; h, c: the last carried values, [batch, hidden].
  struct Results {
    Value y, h, c;
  };
  absl::StatusOr<Results> Run();

 private:
  static constexpr const char* kNames[] = {"rnn", "gru", "lstm"};
  std::string Name() const { return kNames[static_cast<int>(form_.kind)]; }
  bool is_reverse() const { return form_.first_is_reverse || direction_ == 1; }

  // Adds an input to the body for a value of the program.
  absl::StatusOr<Value> Enter(std::vector<ScanParts::Operand>& group, Value outer, const std::string& name,
                              bool is_scanned = false);
  absl::Status EnterAll();
  Value OfDirection(Value all) { return ElementAlong(n_.b(), all, 0, direction_); }
  Value Part(Builder& b, Value x, int64_t dim, int64_t first, int64_t count) {
    std::vector<int64_t> start(static_cast<size_t>(x.shape().rank()), 0), limit = x.shape().dims();
    start[static_cast<size_t>(dim)] = first * form_.hidden;
    limit[static_cast<size_t>(dim)] = (first + count) * form_.hidden;
    return b.Slice(x, start, limit);
  }

  // --- In the body
  Value Gate(Value all, int64_t i) { return form_.gates == 1 ? all : Part(b_, all, 1, i, 1); }
  Value Biased(Value x, Value bias) { return bias ? b_.Add(x, b_.BroadcastAlong(bias, x.shape(), 1)) : x; }
  Value Activate(int64_t which, Value x) {
    const auto per_direction = static_cast<int64_t>(form_.activations.size()) / form_.directions;
    if (form_.clip > 0) x = b_.Min(b_.Max(x, b_.SplatLike(-form_.clip, x)), b_.SplatLike(form_.clip, x));
    return ApplyActivation(b_, form_.activations[static_cast<size_t>(direction_ * per_direction + which)], x);
  }
  Value Peephole(int64_t i, Value x, Value c) {
    return peepholes_ ? b_.Add(x, b_.Mul(b_.BroadcastAlong(Part(b_, peepholes_, 0, i, 1), c.shape(), 1), c)) : x;
  }
  void StepRnn();
  void StepGru();
  void StepLstm();

  OnnxNode& n_;
  const RecurrentForm& form_;
  const int64_t direction_;
  Graph body_;
  Builder b_;
  ScanParts parts_;
  Value x_, w_, r_, r_hidden_, bias_, recurrent_bias_, peepholes_, mask_, h_, c_;
  Value next_h_, next_c_;
};

absl::StatusOr<Value> Recurrence::Enter(std::vector<ScanParts::Operand>& group, Value outer, const std::string& name,
                                        bool is_scanned) {
  RETURN_IF_ERROR(n_.b().status());
  const TensorType type = is_scanned ? TensorType{outer.dtype(), outer.shape().Without({0})} : outer.type();
  ASSIGN_OR_RETURN(const Value inner, body_.AddInput(name, type));
  group.push_back({outer, inner});
  return inner;
}

absl::Status Recurrence::EnterAll() {
  const TensorType state{form_.x.dtype(), Shape({form_.batch, form_.hidden})};
  const auto first = [&](Value given) { return given ? OfDirection(given) : n_.b().Splat(0.0, state); };
  ASSIGN_OR_RETURN(h_, Enter(parts_.carried, first(form_.initial_h), "h"));
  if (form_.kind == CellKind::kLstm) {
    ASSIGN_OR_RETURN(c_, Enter(parts_.carried, first(form_.initial_c), "c"));
  }
  ASSIGN_OR_RETURN(x_, Enter(parts_.scanned, form_.x, "x", /*is_scanned=*/true));
  if (form_.mask) {
    ASSIGN_OR_RETURN(mask_, Enter(parts_.scanned, form_.mask, "goes_on", /*is_scanned=*/true));
    mask_ = b_.BroadcastAlong(mask_, state.shape, 0);
  }
  ASSIGN_OR_RETURN(w_, Enter(parts_.constants, OfDirection(form_.w), "w"));
  // A GRU without linear_before_reset resets h before the product of the hidden gate, so that product is separate.
  const Value r = OfDirection(form_.r);
  const bool in_two = form_.kind == CellKind::kGru && !form_.linear_before_reset;
  ASSIGN_OR_RETURN(r_, Enter(parts_.constants, in_two ? Part(n_.b(), r, 0, 0, 2) : r, "r"));
  if (in_two) {
    ASSIGN_OR_RETURN(r_hidden_, Enter(parts_.constants, Part(n_.b(), r, 0, 2, 1), "r_hidden"));
  }
  if (form_.bias) {
    const Value both = OfDirection(form_.bias);
    const Value of_x = Part(n_.b(), both, 0, 0, form_.gates), of_h = Part(n_.b(), both, 0, form_.gates, form_.gates);
    // A GRU with linear_before_reset multiplies only the recurrent part, with its bias, by the reset gate.
    const bool apart = form_.kind == CellKind::kGru && form_.linear_before_reset;
    ASSIGN_OR_RETURN(bias_, Enter(parts_.constants, apart ? of_x : n_.b().Add(of_x, of_h), "bias"));
    if (apart) {
      ASSIGN_OR_RETURN(recurrent_bias_, Enter(parts_.constants, of_h, "recurrent_bias"));
    }
  }
  if (form_.peepholes) {
    ASSIGN_OR_RETURN(peepholes_, Enter(parts_.constants, OfDirection(form_.peepholes), "peepholes"));
  }
  return b_.status();
}

void Recurrence::StepRnn() {
  const Value sum = b_.Add(b_.MatMul(x_, w_, false, true), b_.MatMul(h_, r_, false, true));
  next_h_ = Activate(0, Biased(sum, bias_));
}

// Gates in order: update, reset, hidden.
void Recurrence::StepGru() {
  const Value of_x = Biased(b_.MatMul(x_, w_, false, true), bias_);
  Value update, reset, hidden;
  if (form_.linear_before_reset) {
    const Value of_h = Biased(b_.MatMul(h_, r_, false, true), recurrent_bias_);
    update = Activate(0, b_.Add(Gate(of_x, 0), Gate(of_h, 0)));
    reset = Activate(0, b_.Add(Gate(of_x, 1), Gate(of_h, 1)));
    hidden = Activate(1, b_.Add(Gate(of_x, 2), b_.Mul(reset, Gate(of_h, 2))));
  } else {
    const Value of_h = b_.MatMul(h_, r_, false, true);
    update = Activate(0, b_.Add(Gate(of_x, 0), Gate(of_h, 0)));
    reset = Activate(0, b_.Add(Gate(of_x, 1), Gate(of_h, 1)));
    const Value after_reset = b_.MatMul(b_.Mul(reset, h_), r_hidden_, false, true);
    hidden = Activate(1, b_.Add(Gate(of_x, 2), after_reset));
  }
  next_h_ = b_.Add(b_.Mul(b_.Sub(b_.SplatLike(1.0, update), update), hidden), b_.Mul(update, h_));
}

// Gates in order: input, output, forget, cell. Peepholes: input, output, forget.
void Recurrence::StepLstm() {
  const Value sum = b_.Add(b_.MatMul(x_, w_, false, true), b_.MatMul(h_, r_, false, true));
  const Value gates = Biased(sum, bias_);
  std::vector<Value> gate;
  for (int64_t i = 0; i < form_.gates; ++i) gate.push_back(Gate(gates, i));  // keeps gradients in order
  const Value input = Activate(0, Peephole(0, gate[0], c_));
  const Value forget =
      form_.input_forget ? b_.Sub(b_.SplatLike(1.0, input), input) : Activate(0, Peephole(2, gate[2], c_));
  const Value cell = Activate(1, gate[3]);
  next_c_ = b_.Add(b_.Mul(forget, c_), b_.Mul(input, cell));
  const Value output = Activate(0, Peephole(1, gate[1], next_c_));
  next_h_ = b_.Mul(output, Activate(2, next_c_));
}

absl::StatusOr<Recurrence::Results> Recurrence::Run() {
  RETURN_IF_ERROR(EnterAll());
  if (form_.kind == CellKind::kRnn) StepRnn();
  else if (form_.kind == CellKind::kGru) StepGru();
  else StepLstm();
  Value y = next_h_;
  if (mask_) {
    y = b_.Select(mask_, next_h_, b_.SplatLike(0.0, h_));
    next_h_ = b_.Select(mask_, next_h_, h_);
    if (next_c_) next_c_ = b_.Select(mask_, next_c_, c_);
  }
  RETURN_IF_ERROR(b_.status());
  parts_.next_carried = {next_h_};
  if (next_c_) parts_.next_carried.push_back(next_c_);
  parts_.stacked = {y};
  ASSIGN_OR_RETURN(const std::vector<Value> results, AddScan(n_, body_, parts_, form_.length, is_reverse()));
  if (next_c_) return Results{results[2], results[0], results[1]};
  return Results{results[1], results[0], Value()};
}

// Joins the directions' values [..., batch, hidden] along a new dimension before the batch. If `batch_first`, the batch
// becomes the first dimension of the result.
Value Join(Builder& b, const std::vector<Value>& of_directions, bool is_stacked, bool batch_first) {
  std::vector<Value> wide;
  for (Value value : of_directions) {
    if (!value) return Value();
    std::vector<int64_t> dims = value.shape().dims();
    dims.insert(dims.end() - 2, 1);
    wide.push_back(b.Reshape(value, Shape(dims)));
  }
  const Value all = wide.size() == 1 ? wide[0] : b.Concat(wide, is_stacked ? 1 : 0);
  if (!batch_first) return all;
  return b.Transpose(all, is_stacked ? std::vector<int64_t>{2, 0, 1, 3} : std::vector<int64_t>{1, 0, 2});
}

template <CellKind kind>
absl::Status Recurrent(OnnxNode& n) {
  ASSIGN_OR_RETURN(const RecurrentForm form, ReadRecurrentForm(n, kind));
  std::vector<Value> y, h, c;
  for (int64_t direction = 0; direction < form.directions; ++direction) {
    ASSIGN_OR_RETURN(const Recurrence::Results results, Recurrence(n, form, direction).Run());
    y.push_back(results.y);
    h.push_back(results.h);
    c.push_back(results.c);
  }
  n.SetOutput(0, Join(n.b(), y, true, form.batch_first));
  n.SetOutput(1, Join(n.b(), h, false, form.batch_first));
  n.SetOutput(2, Join(n.b(), c, false, form.batch_first));
  return n.b().status();
}

}  // namespace

std::vector<OnnxOp> RecurrentOps() {
  return {
      {"RNN", 1, kNoEnd, 3, 6, Recurrent<CellKind::kRnn>},
      {"GRU", 1, kNoEnd, 3, 6, Recurrent<CellKind::kGru>},
      {"LSTM", 1, kNoEnd, 3, 8, Recurrent<CellKind::kLstm>},
  };
}

}  // namespace lockstep
