// The ops that mark where the ranks exchange a gradient, or weights, by an algorithm that users choose. Their meanings
// are a sum over ranks, and the weights themselves. The algorithm, `body`, is a placed graph that the pass
// lower-exchanges puts in its place; it may lose digits, keep states, and let the weights of ranks differ.

#include "core/builder.h"
#include "core/ops/collective_rules.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

// The body of an exchange is the program of all ranks of its axis.
absl::Status CheckMeshOfBody(const InferContext& c, const Graph& body) {
  const Mesh& mesh = body.mesh();
  if (!body.is_local() && mesh.axes().size() == 1 && mesh.has_axis(c.attr<std::string>("axis")))
    return absl::OkStatus();
  return c.Error("C1") << "the body has the mesh " << mesh.ToString();
}

// Of one gradient it makes one sum.
absl::Status CheckBody(const InferContext& c, const Graph& body) {
  const std::string& axis = c.attr<std::string>("axis");
  RETURN_IF_ERROR(CheckMeshOfBody(c, body));
  size_t gradients = 0;
  for (const Input& input : body.inputs()) {
    if (!input.is_data()) continue;
    ++gradients;
    if (input.value.type() != c.operand(0) || !input.value.placement(axis).is_partial(ReduceKind::kSum))
      return c.Error("C2") << "input %" << input.name() << " of the body is " << input.value.type() << " "
                           << input.value.placement(axis) << ", x is " << c.operand(0);
  }
  if (gradients != 1) return c.Error("C2") << "the body has " << gradients << " inputs";
  size_t results = 0;
  for (const Result& result : body.results()) {
    if (result.is_state) continue;
    ++results;
    if (result.value.type() != c.operand(0) || !result.value.placement(axis).is_replicated())
      return c.Error("C3") << "result " << result.name << " of the body is " << result.value.type() << " "
                           << result.value.placement(axis) << ", x is " << c.operand(0);
  }
  if (results != 1) return c.Error("C3") << "the body has " << results << " results";
  return absl::OkStatus();
}

// The same of an exchange of weights: of a rank's own weights and those on which all ranks have agreed, it makes the
// next ones on which they agree, and how each rank's own differ from them.
absl::Status CheckBodyOfWeights(const InferContext& c, const Graph& body) {
  const std::string& axis = c.attr<std::string>("axis");
  RETURN_IF_ERROR(CheckMeshOfBody(c, body));
  std::vector<int64_t> stacked = c.shape(0).dims();
  stacked.insert(stacked.begin(), *body.mesh().axis_size(axis));
  const TensorType offsets{c.dtype(0), Shape(stacked)};
  const auto matches = [&](Value value, const TensorType& type, const Placement& placement) {
    return value.type() == type && value.placement(axis) == placement;
  };
  std::vector<Value> inputs, results;
  for (const Input& input : body.inputs()) {
    if (input.is_data()) inputs.push_back(input.value);
  }
  if (inputs.size() != 2 || !matches(inputs[0], c.operand(0), Placement::Local()) ||
      !matches(inputs[1], c.operand(0), Placement::Replicated()))
    return c.Error("C2") << "the inputs of the body are not weights of " << c.operand(0);
  for (const Result& result : body.results()) {
    if (!result.is_state) results.push_back(result.value);
  }
  if (results.size() != 2 || !matches(results[0], c.operand(0), Placement::Replicated()) ||
      !matches(results[1], offsets, Placement::Split(0)))
    return c.Error("C3") << "the results of the body are not weights of " << c.operand(0) << " and " << offsets;
  return absl::OkStatus();
}

absl::Status InferExchangeOfWeights(InferContext& c) {
  if (const Region& body = c.attr<Region>("body"); !body.empty()) RETURN_IF_ERROR(CheckBodyOfWeights(c, body.graph()));
  if (!IsFloat(c.dtype(0))) return c.Error("C4") << "x is " << c.operand(0) << ", expected floats";
  return c.SetResult(c.operand(0));
}

absl::Status EvalIdentity(EvalContext& c) {
  c.result() = c.operand(0);
  return absl::OkStatus();
}

// Places an op whose operand is of the placement `from` along its own axis, or replicated, and whose result is `to`.
void PlaceAs(PlacementContext& c, const Placement& from, const Placement& to) {
  if (c.mesh_axis().name != c.attr<std::string>("axis")) return c.Result(c.operand(0));
  if (c.operand(0) != from) c.Require(0, Placement::Replicated());
  c.Result(to);
}

absl::Status InferAs(InferContext& c) {
  const std::string& axis = c.attr<std::string>("axis");
  if (!c.mesh().empty() && !c.mesh().has_axis(axis))
    return c.Error("C1") << "there is no axis '" << axis << "' in the mesh " << c.mesh().ToString();
  return c.SetResult(c.operand(0));
}

absl::Status InferExchange(InferContext& c) {
  if (const Region& body = c.attr<Region>("body"); !body.empty()) RETURN_IF_ERROR(CheckBody(c, body.graph()));
  if (!IsFloat(c.dtype(0))) return c.Error("C4") << "x is " << c.operand(0) << ", expected floats";
  return c.SetResult(c.operand(0));
}

// A gradient that is whole on all ranks needs no exchange: its decomposition is the gradient itself.
void PlaceExchange(PlacementContext& c) {
  const bool is_own = c.mesh_axis().name == c.attr<std::string>("axis");
  if (is_own && c.operand(0).is_partial(ReduceKind::kSum)) return c.Result(Placement::Replicated());
  c.Require(0, Placement::Replicated());
  c.Result(Placement::Replicated());
  if (is_own) c.Decompose();
}

}  // namespace

//===-- exchange --------------------------------------------------------------------------------------------------===//
const OpDef& ExchangeOp() {
  static const OpDef def =
      OpDef("exchange")
          .Doc(
              "The sum of x over all ranks of a mesh axis, as the exchange `by` computes it; x itself in a program "
              "without that axis. The pass lower-exchanges replaces it by `body`, which may round the sum and keep "
              "states; without a body, by an all_reduce.")
          .Operand("x")
          .Attr<std::string>("by", "the exchange, such as lockstep.exchange.power_sgd(rank=4)")
          .OptionalAttr<std::string>("state", "", "the trained state whose gradient x is; empty: none")
          .OptionalAttr<std::string>("axis", "data", "of the mesh")
          .OptionalAttr<std::string>("wire", "", "of the all_reduce that stands for a missing body")
          .OptionalAttr<Region>("body", Region(), "a placed graph of the axis: x, partial(sum), to the sum, replicated")
          .Trait(kOpaque)
          .Constraint("C1", "the mesh of the body is the axis alone")
          .Constraint("C2", "the body has states, settings, and one other input: of x's type, partial(sum)")
          .Constraint("C3", "the body has one result that is no state: of x's type, replicated")
          .Constraint("C4", "x is of floats")
          .Infer(InferExchange)
          .EvalAcrossRanks(ops::EvalSumOverRanks)
          .Precision(PrecisionRule::kAsDeclared)
          .NoGradient("updates are where differentiation ends")
          .Place(PlaceExchange)
          .Decompose([](DecomposeContext& c) -> std::vector<Value> { return {c.operand(0)}; });
  return def;
}

//===-- exchange_weights ------------------------------------------------------------------------------------------===//
const OpDef& ExchangeWeightsOp() {
  static const OpDef def =
      OpDef("exchange_weights")
          .Doc(
              "x, the next value of a trained state, after which the ranks exchange their weights as `by` says. The "
              "pass lower-exchanges replaces it by `body`: until the ranks agree again, each has weights of its own, "
              "which its own gradients update. Without a body, the weights are equal on all ranks, and gradients are "
              "summed.")
          .Operand("x")
          .Attr<std::string>("by", "the exchange, such as lockstep.exchange.local_sgd(every=8)")
          .Attr<std::string>("state", "the trained state")
          .OptionalAttr<std::string>("axis", "data", "of the mesh")
          .OptionalAttr<Region>(
              "body", Region(),
              "a placed graph of the axis: a rank's weights, local, and those on which all agreed, to "
              "those on which all agree, and each rank's own minus these, stacked")
          .Trait(kOpaque)
          .Constraint("C1", "the mesh of the body is the axis alone")
          .Constraint("C2", "the body has states, settings, and two other inputs: of x's type, local and replicated")
          .Constraint(
              "C3",
              "the body has two results that are no states: of x's type, replicated, and with a first dimension "
              "for the ranks, split(0)")
          .Constraint("C4", "x is of floats")
          .Infer(InferExchangeOfWeights)
          .Eval(EvalIdentity)
          .Precision(PrecisionRule::kAsDeclared)
          .NoGradient("updates are where differentiation ends")
          .Place([](PlacementContext& c) {
            c.Require(0, Placement::Replicated());
            c.Result(Placement::Replicated());
          })
          .Decompose([](DecomposeContext& c) -> std::vector<Value> { return {c.operand(0)}; });
  return def;
}

//===-- as_local --------------------------------------------------------------------------------------------------===//
const OpDef& AsLocalOp() {
  static const OpDef def = OpDef("as_local")
                               .Doc("x as a value of which each rank of a mesh axis has its own. No communication.")
                               .Operand("x")
                               .Attr<std::string>("axis", "of the mesh")
                               .Trait(kMovement)
                               .Trait(kKeepsOrder)
                               .Constraint("C1", "axis is an axis of the mesh, if there is one")
                               .Infer(InferAs)
                               .Eval(EvalIdentity)
                               .Precision(PrecisionRule::kFollows)
                               .NoGradient("it is used only after differentiation")
                               .Place([](PlacementContext& c) { PlaceAs(c, Placement::Local(), Placement::Local()); });
  return def;
}

//===-- as_replicated ---------------------------------------------------------------------------------------------===//
const OpDef& AsReplicatedOp() {
  static const OpDef def =
      OpDef("as_replicated")
          .Doc(
              "x, which may differ between the ranks of a mesh axis, where a value is needed that is equal on them. "
              "The pass lower-exchanges inserts it where an exchange of weights lets ranks differ, and checks what is "
              "computed from it. No communication.")
          .Operand("x")
          .Attr<std::string>("axis", "of the mesh")
          .Trait(kMovement)
          .Trait(kKeepsOrder)
          .Constraint("C1", "axis is an axis of the mesh, if there is one")
          .Infer(InferAs)
          .Eval(EvalIdentity)
          .Precision(PrecisionRule::kFollows)
          .NoGradient("it is used only after differentiation")
          .Place([](PlacementContext& c) { PlaceAs(c, Placement::Local(), Placement::Replicated()); });
  return def;
}

}  // namespace lockstep
