#include "core/ops/optimizer.h"

#include "core/interpreter.h"
#include "core/ops/rules.h"

namespace lockstep::ops {
namespace {

// The operands are the variable, its states, `step` if there is one, the gradient, and then options.
bool IsOption(const OpDef& op, size_t i) { return i >= op.operand_names().size(); }
bool IsStep(const OpDef& op, size_t i) { return !IsOption(op, i) && op.operand_names()[i] == "step"; }

// --- Inference ---------------------------------------------------------------------------------------------------

// The type of operand i, which must not be an option, for this type of variable.
TensorType TypeBeside(const OpDef& op, const TensorType& variable, size_t i) {
  if (IsStep(op, i)) return {DType::kI64, Shape()};
  const std::vector<OptimizerState>& states = op.optimizer().states;
  return i > 0 && i <= states.size() ? states[i - 1].TypeFor(variable) : variable;
}

absl::Status CheckTypes(const InferContext& c) {
  if (!IsFloat(c.dtype(0))) return c.Error("C1") << "w is " << c.operand(0) << ", expected a floating-point dtype";
  const VariableRanks& ranks = c.op().optimizer().ranks;
  if (!ranks.Contain(c.shape(0).rank()))
    return c.Error("rank") << "w is " << c.operand(0) << ", expected " << ranks.ToString();
  for (size_t i = 1; i < c.op().operand_names().size(); ++i) {
    const TensorType expected = TypeBeside(c.op(), c.operand(0), i);
    if (c.operand(i) == expected) continue;
    return c.Error(IsStep(c.op(), i) ? "C3" : "C2") << c.op().operand_names()[i] << " is " << c.operand(i)
                                                    << ", expected " << expected << ", where w is " << c.operand(0);
  }
  return absl::OkStatus();
}

absl::Status Infer(InferContext& c) {
  RETURN_IF_ERROR(CheckTypes(c));
  std::vector<TensorType> types;
  for (size_t i = 0; i < c.op().result_names().size(); ++i) types.push_back(c.operand(i));
  return c.SetResults(std::move(types));
}

// The text of the constraint: "g and the states have the type of w, but for rows, in which the last extent is 1".
std::string TypesConstraint(const std::vector<OptimizerState>& states) {
  std::string text = "g and the states have the type of w";
  for (const OptimizerState& state : states) {
    if (state.shape == StateShape::kScalar) text += ", but for " + state.operand + ", which is f64[]";
    if (state.shape == StateShape::kRows) text += ", but for " + state.operand + ", in which the last extent is 1";
    if (state.shape == StateShape::kColumns) text += ", but for " + state.operand + ", in which the last but one is 1";
  }
  return text;
}

// --- Evaluation --------------------------------------------------------------------------------------------------

// The next values that the formula gives for the node's operands, for a variable of `dtype`.
std::vector<Value> NextValues(DecomposeContext& c, const Formula& formula, DType dtype) {
  Update update(c, dtype);
  const std::vector<Term> terms = formula(update);
  std::vector<Value> next;
  for (size_t i = 0; i < terms.size(); ++i) next.push_back(update.Next(i, terms[i]));
  return next;
}

// Interprets the formula in f64 and rounds the results once.
absl::Status Eval(EvalContext& c, const Formula& formula) {
  Graph graph(c.op().name());
  std::vector<Value> operands;
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    const Tensor& given = c.operand(i);
    if (IsStep(c.op(), i) && given.data<int64_t>()[0] < 1)
      return c.Error("C4") << "step is " << given.data<int64_t>()[0] << ", expected at least 1";
    inputs.push_back(IsStep(c.op(), i) ? given : given.Converted(DType::kF64));
    ASSIGN_OR_RETURN(const Value operand, graph.AddInput("x" + std::to_string(i), inputs.back().type()));
    operands.push_back(operand);
  }
  ASSIGN_OR_RETURN(Node* const node, graph.Insert({&c.op(), operands, c.attributes(), "", {}}));
  Builder b(graph);
  DecomposeContext decompose(*node, b);
  const std::vector<Value> next = NextValues(decompose, formula, c.operand(0).dtype());
  RETURN_IF_ERROR(b.status());
  const std::vector<std::string> names = c.op().result_names();
  for (size_t i = 0; i < next.size(); ++i) RETURN_IF_ERROR(graph.AddResult(names[i], next[i]));
  graph.Erase(node);
  ASSIGN_OR_RETURN(const std::vector<Tensor> results, InterpretOneRank(graph, inputs));
  for (size_t i = 0; i < next.size(); ++i) c.result(i) = results[i].Converted(c.result(i).dtype());
  return absl::OkStatus();
}

// --- Placement ---------------------------------------------------------------------------------------------------

// The placement of operand i if the update has `placement`. An operand without the dimension that is split, such as a
// scalar, is replicated.
Placement Beside(const PlacementContext& c, const Placement& placement, size_t i) {
  const bool is_number = IsStep(c.op(), i) || IsOption(c.op(), i) || c.shape(i).rank() != c.shape(0).rank();
  if (is_number || !placement.is_split()) return Placement::Replicated();
  const bool has_dim = c.shape(i)[placement.dim()] == c.shape(0)[placement.dim()];
  return has_dim ? placement : Placement::Replicated();
}

// The placement of the update: that of the variable, or if that is replicated, of a state that is split.
Placement PlaceOfUpdate(const PlacementContext& c, size_t gradient) {
  if (!c.operand(0).is_replicated()) return c.operand(0);
  for (size_t i = 1; i < gradient; ++i) {
    if (c.operand(i).is_split() && Beside(c, c.operand(i), i).is_split()) return c.operand(i);
  }
  return c.operand(0);
}

// All operands are required in the placement of the update, so that a partial gradient is reduced first. This inserts
// the all_reduce of data-parallel training; if states are split, it inserts a reduce_scatter, and an all_gather of the
// next variable. A value that differs between ranks must not reach a variable.
void Place(PlacementContext& c, Elements elements) {
  const auto& names = c.op().operand_names();
  const size_t gradient = names.size() - 1;
  const Placement placement = PlaceOfUpdate(c, gradient);
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (c.operand(i).is_local() || (c.operand(i).is_partial() && i < gradient)) {
      const std::string what = IsOption(c.op(), i) ? "operand " + std::to_string(i) : names[i];
      return c.Fail(what + " is " + c.operand(i).ToString() + ": the ranks' copies of the variable would diverge");
    }
    c.Require(i, Beside(c, placement, i));
  }
  for (size_t i = 0; i < c.num_results(); ++i) c.Result(i, Beside(c, placement, i));
  if (elements == Elements::kTogether && placement.is_split()) c.Decompose();
}

}  // namespace

// --- The formula's view ------------------------------------------------------------------------------------------

Update::Update(DecomposeContext& c, DType dtype)
    : NodeContext(c.op(), c.attributes()),
      builder_(c.b()),
      shape_(c.operand(0).shape()),
      dtype_(dtype),
      computed_(c.operand(0).dtype() == DType::kF64 ? DType::kF64 : DType::kF32) {
  for (size_t i = 0; i < c.num_operands(); ++i) {
    types_.push_back(c.operand(i).type());
    const bool is_f64 = IsStep(op_, i) || types_[i].dtype == DType::kF64;
    operands_.emplace_back(builder_, builder_.Convert(c.operand(i), is_f64 ? DType::kF64 : computed_));
  }
}

Value Update::Next(size_t i, const Term& term) const {
  const DType dtype = types_[i].dtype == DType::kF64 ? DType::kF64 : computed_;
  return builder_.Convert(term.As(builder_, {dtype, types_[i].shape}), types_[i].dtype);
}

Term Update::option(std::string_view attribute) const {
  const Attribute& value = attributes_.find(attribute)->second;
  if (const auto* ref = std::get_if<OperandRef>(&value)) return operands_[static_cast<size_t>(ref->index)];
  return std::get<double>(value);
}

Term Update::step() const {
  const size_t i = op_.operand_names().size() - 2;
  LOCKSTEP_CHECK(IsStep(op_, i)) << op_.name() << " does not count steps";
  return operands_[i];
}

OpDef Optimizer(std::string name, const std::vector<OptimizerState>& states, Formula formula, Steps steps,
                Elements elements) {
  OpDef def(std::move(name));
  def.Operand("w").Result("next_w");
  for (const OptimizerState& state : states) {
    def.Operand(state.operand).Result("next_" + state.operand).State(state);
  }
  if (steps == Steps::kCounted) def.Operand("step");
  def.Operand("g")
      .Attr<double>("learning_rate", "the size of a step")
      .In(AtLeast(0))
      .OrOperand()
      .Trait(kOptimizer)
      .Constraint("C1", "w has a floating-point dtype")
      .Constraint("C2", TypesConstraint(states))
      .Infer(Infer)
      .Eval([formula](EvalContext& c) { return Eval(c, formula); })
      .NoGradient("an optimizer step is where differentiation ends")
      .Place([elements](PlacementContext& c) { Place(c, elements); })
      .Decompose([formula](DecomposeContext& c) { return NextValues(c, formula, c.operand(0).dtype()); });
  if (steps == Steps::kCounted)
    def.Constraint("C3", "step is a scalar i64").Constraint("C4", "when it runs: step is at least 1");
  return def;
}

}  // namespace lockstep::ops
