#include "core/ops/optimizer.h"

#include "core/interpreter.h"
#include "core/ops/rules.h"

namespace lockstep::ops {
namespace {

// The variable, its states and the gradient are the operands but for `step`, if there is one, and for options, which
// come last.
bool IsOption(const OpDef& op, size_t i) { return i >= op.operand_names().size(); }
bool IsStep(const OpDef& op, size_t i) { return !IsOption(op, i) && op.operand_names()[i] == "step"; }

// --- Inference ---------------------------------------------------------------------------------------------------

absl::Status CheckTypes(const InferContext& c) {
  if (!IsFloat(c.dtype(0))) return c.Error("C1") << "w is " << c.operand(0) << ", expected a floating-point dtype";
  for (size_t i = 1; i < c.op().operand_names().size(); ++i) {
    if (IsStep(c.op(), i)) {
      const TensorType expected{DType::kI64, Shape()};
      if (c.operand(i) != expected) return c.Error("C3") << "step is " << c.operand(i) << ", expected " << expected;
    } else if (c.operand(i) != c.operand(0)) {
      return c.Error("C2") << c.op().operand_names()[i] << " is " << c.operand(i) << ", expected " << c.operand(0)
                           << ", the type of w";
    }
  }
  return absl::OkStatus();
}

absl::Status Infer(InferContext& c) {
  RETURN_IF_ERROR(CheckTypes(c));
  return c.SetResults(std::vector<TensorType>(c.op().result_names().size(), c.operand(0)));
}

// --- Evaluation --------------------------------------------------------------------------------------------------

// The formula on f64, interpreted, and rounded once.
absl::Status Eval(EvalContext& c) {
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
  const std::vector<Value> next = c.op().decompose()(decompose);
  RETURN_IF_ERROR(b.status());
  const std::vector<std::string> names = c.op().result_names();
  for (size_t i = 0; i < next.size(); ++i) RETURN_IF_ERROR(graph.AddResult(names[i], next[i]));
  graph.Erase(node);
  ASSIGN_OR_RETURN(const std::vector<Tensor> results, InterpretOneRank(graph, inputs));
  for (size_t i = 0; i < next.size(); ++i) c.result(i) = results[i].Converted(c.result(i).dtype());
  return absl::OkStatus();
}

// --- Placement ---------------------------------------------------------------------------------------------------

// Everything is where the variable is, so that a partial gradient is reduced first: this is what puts the all_reduce of
// data-parallel training into the program. What differs between ranks must not reach a variable.
void Place(PlacementContext& c) {
  const auto& names = c.op().operand_names();
  const size_t gradient = names.size() - 1;
  const Placement placement = c.operand(0);
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (c.operand(i).is_local() || (c.operand(i).is_partial() && i < gradient)) {
      const std::string what = IsOption(c.op(), i) ? "operand " + std::to_string(i) : names[i];
      return c.Fail(what + " is " + c.operand(i).ToString() + ": the ranks' copies of the variable would diverge");
    }
    const bool is_scalar = IsStep(c.op(), i) || IsOption(c.op(), i);
    c.Require(i, is_scalar ? Placement::Replicated() : placement);
  }
  c.Result(placement);
}

}  // namespace

// --- The formula's view ------------------------------------------------------------------------------------------

Update::Update(DecomposeContext& c) : NodeContext(c.op(), c.attributes()), builder_(c.b()) {
  const TensorType& variable = c.operand(0).type();
  computed_ = {variable.dtype == DType::kF64 ? DType::kF64 : DType::kF32, variable.shape};
  for (size_t i = 0; i < c.num_operands(); ++i) {
    const DType dtype = IsStep(op_, i) || IsOption(op_, i) ? DType::kF64 : computed_.dtype;
    operands_.emplace_back(builder_, builder_.Convert(c.operand(i), dtype));
  }
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

OpDef Optimizer(std::string name, const std::vector<OptimizerState>& states, Formula formula, Steps steps) {
  OpDef def(std::move(name));
  def.Operand("w").Result("next_w");
  for (const OptimizerState& state : states) {
    def.Operand(state.operand).Result("next_" + state.operand).State(state);
  }
  if (steps == Steps::kCounted) def.Operand("step");
  def.Operand("g")
      .Attr<double>("learning_rate", "how far a step goes")
      .In(AtLeast(0))
      .OrOperand()
      .Trait(kOptimizer)
      .Constraint("C1", "w has a floating-point dtype")
      .Constraint("C2", "g and the state have the type of w")
      .Infer(Infer)
      .Eval(Eval)
      .NoGradient("an optimizer step is where differentiation ends")
      .Place(Place)
      .Decompose([formula = std::move(formula)](DecomposeContext& c) {
        Update update(c);
        std::vector<Value> next;
        for (const Term& term : formula(update))
          next.push_back(c.b().Convert(update.Tensor(term), c.operand(0).dtype()));
        return next;
      });
  if (steps == Steps::kCounted)
    def.Constraint("C3", "step is a scalar i64").Constraint("C4", "when it runs: step is at least 1");
  return def;
}

}  // namespace lockstep::ops
