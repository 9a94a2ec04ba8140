// The op that the pass FuseElementwise makes: several nodes as one, which a backend compiles to one loop.

#include <unordered_map>

#include "core/builder.h"
#include "core/interpreter.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

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

std::vector<Value> DecomposeFusion(DecomposeContext& c) {
  const Graph& body = BodyOf(c);
  std::unordered_map<Value, Value, ValueHash> outer;
  for (size_t i = 0; i < c.num_operands(); ++i) outer[body.inputs()[i].value] = c.operand(i);
  const std::string source = c.b().source();
  for (const Node& node : body.nodes()) {
    std::vector<Value> operands;
    for (Value operand : node.operands()) operands.push_back(outer.at(operand));
    if (!node.source().empty()) c.b().set_source(node.source());
    const std::vector<Value> results = c.b().Ops(node.op_name(), std::move(operands), node.attributes());
    c.b().set_source(source);
    for (size_t i = 0; i < node.num_results(); ++i) outer[{const_cast<Node*>(&node), static_cast<int>(i)}] = results[i];
  }
  std::vector<Value> results;
  for (const Result& result : body.results()) results.push_back(outer.at(result.value));
  return results;
}

// In a distributed graph, where the operands are decides through the rules of the body's ops where the results are;
// nothing can be moved inside. A fusion that is yet to be distributed is taken apart, so that collectives can come between
// its ops.
void PlaceFusion(PlacementContext& c) {
  if (!c.types_are_local()) return c.Decompose();
  const Graph& body = BodyOf(c);
  std::unordered_map<Value, Placement, ValueHash> placed;
  for (size_t i = 0; i < c.num_operands(); ++i) placed[body.inputs()[i].value] = c.operand(i);
  for (const Node& node : body.nodes()) {
    std::vector<Placement> operands;
    for (Value operand : node.operands()) operands.push_back(placed.at(operand));
    PlacementContext inner(node, operands, c.mesh_axis(), c.axis_size(), std::nullopt, c.types_are_local());
    node.op().place()(inner);
    if (!inner.failure().empty()) return c.Fail(node.Describe() + " in its body: " + inner.failure());
    if (inner.decompose()) return c.Fail(node.Describe() + " in its body has to be decomposed first");
    for (size_t i = 0; i < operands.size(); ++i) {
      const bool stands_for_slice = operands[i].is_replicated() && inner.required()[i].is_split();
      if (inner.required()[i] == operands[i] || stands_for_slice) continue;
      // What an operand of the fusion must be is said of the fusion, so that the checker says what is missing and what diverges.
      for (size_t j = 0; j < c.num_operands(); ++j) {
        if (body.inputs()[j].value == node.operand(i)) return c.Require(j, inner.required()[i]);
      }
      return c.Fail(node.Describe() + " in its body needs operand %" + node.operand(i).name() + " " +
                    inner.required()[i].ToString() + ", and it is " + operands[i].ToString());
    }
    for (size_t i = 0; i < node.num_results(); ++i)
      placed[{const_cast<Node*>(&node), static_cast<int>(i)}] = inner.results()[i];
  }
  for (size_t i = 0; i < body.results().size(); ++i) c.Result(i, placed.at(body.results()[i].value));
}

}  // namespace

//===-- fusion -------------------------------------------------------------------------------------------------------------===//
const OpDef& FusionOp() {
  static const OpDef def = OpDef("fusion")
                               .Doc(
                                   "The results of the graph `body` for the operands as its inputs. Made after "
                                   "differentiation and distribution, for a "
                                   "backend to compile as one loop.")
                               .VariadicOrNone("inputs")
                               .Attr<Region>("body", "a graph without state and collectives")
                               .Constraint("C1", "the operands have the types of the body's inputs, in order")
                               .Constraint("C2", "no input of the body is a state")
                               .Constraint("C3", "the body holds no collective")
                               .Constraint("C4", "the body has a result")
                               .Infer(InferFusion)
                               .Eval(EvalFusion)
                               .Decompose(DecomposeFusion)
                               .NoGradient("fusions are made after differentiation; its decomposition has one")
                               .Place(PlaceFusion);
  return def;
}

}  // namespace lockstep
