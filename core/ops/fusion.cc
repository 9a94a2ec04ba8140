// The op that the pass FuseElementwise makes of several nodes, and that a backend compiles to one loop.

#include "core/builder.h"
#include "core/interpreter.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"
#include "core/placement_rules.h"

namespace lockstep {
namespace {

const Graph& BodyOf(const NodeContext& c) { return c.attr<Region>("body").graph(); }

absl::Status InferFusion(InferContext& c) {
  const Graph& body = BodyOf(c);
  if (c.num_operands() != body.inputs().size()) {
    return c.Error("C1") << c.num_operands() << " operands, the body has " << body.inputs().size() << " inputs";
  }
  for (size_t i = 0; i < c.num_operands(); ++i) {
    const Input& input = body.inputs()[i];
    if (c.operand(i) != input.value.type()) {
      return c.Error("C1") << "operand " << i << " is " << c.operand(i) << ", input %" << input.name()
                           << " of the body is " << input.value.type();
    }
    if (input.is_state) return c.Error("C2") << "input %" << input.name() << " of the body is a state";
  }
  for (const Node& node : body.nodes()) {
    if (node.op().has_trait(kCollective)) return c.Error("C3") << "the body holds the collective " << node.Describe();
  }
  if (body.results().empty()) return c.Error("C4") << "the body has no results";
  std::vector<TensorType> types;
  for (const Result& result : body.results()) types.push_back(result.value.type());
  return c.SetResults(std::move(types));
}

absl::Status EvalFusion(EvalContext& c) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < c.num_operands(); ++i) inputs.push_back(c.operand(i));
  ASSIGN_OR_RETURN(std::vector<Tensor> results, InterpretOneRank(BodyOf(c), inputs));
  for (size_t i = 0; i < results.size(); ++i) c.result(i) = std::move(results[i]);
  return absl::OkStatus();
}

double FusionFlops(const Node& node) {
  double sum = 0;
  for (const Node& inner : node.attr<Region>("body").graph().nodes()) sum += FlopsOf(inner);
  return sum;
}

std::vector<Value> DecomposeFusion(DecomposeContext& c) {
  const Graph& body = BodyOf(c);
  ValueMap outer;
  for (size_t i = 0; i < c.num_operands(); ++i) outer[body.inputs()[i].value] = c.operand(i);
  for (const Node& node : body.nodes()) c.b().Copy(node, outer);
  if (!c.b().status().ok()) return std::vector<Value>(body.results().size());
  std::vector<Value> results;
  for (const Result& result : body.results()) results.push_back(outer.at(result.value));
  return results;
}

// Fusions are made of placed nodes, and the body has the placements of its values. (Fusions in a graph without a mesh
// are decomposed before it is distributed, so that collectives can be inserted between their ops.)
void PlaceFusion(PlacementContext& c) {
  const Graph& body = BodyOf(c);
  const std::string& axis = c.mesh_axis().name;
  for (size_t i = 0; i < c.num_operands(); ++i) c.Require(i, body.inputs()[i].value.placement(axis));
  Graph one_axis = body.Clone();
  one_axis.set_mesh(Mesh({c.mesh_axis()}));
  for (const Node& node : one_axis.nodes()) {
    const absl::Status status = CheckPlacements(one_axis, node);
    if (!status.ok()) return c.Fail(std::string(status.message()) + ", in its body");
  }
  for (size_t i = 0; i < body.results().size(); ++i) c.Result(i, body.results()[i].value.placement(axis));
}

}  // namespace

//===-- fusion ----------------------------------------------------------------------------------------------------===//
const OpDef& FusionOp() {
  static const OpDef def = OpDef("fusion")
                               .Doc(
                                   "The results of the graph `body` with the operands as its inputs. Made after "
                                   "differentiation and distribution. A backend compiles it to one loop.")
                               .VariadicOrNone("inputs")
                               .Attr<Region>("body", "a graph without state and collectives")
                               .Constraint("C1", "the operands have the types of the body's inputs, in order")
                               .Constraint("C2", "no input of the body is a state")
                               .Constraint("C3", "the body holds no collective")
                               .Constraint("C4", "the body has a result")
                               .Trait(kOpaque)
                               .Infer(InferFusion)
                               .Eval(EvalFusion)
                               .Flops(FusionFlops)
                               .Decompose(DecomposeFusion)
                               .NoGradient("fusions are made after differentiation; its decomposition has one")
                               .Place(PlaceFusion);
  return def;
}

}  // namespace lockstep
