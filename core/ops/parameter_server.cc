// The ops by which workers use parameter servers (docs/decisions/0047): `push` sends a gradient, and `pull` receives
// the variable after its update. Their meanings do not depend on servers: a sum over ranks, and an optimizer's step.
// Any target can therefore run them, and synchronous servers compute the same bits.

#include "core/builder.h"
#include "core/interpreter.h"
#include "core/ops/collective_rules.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

const Graph& UpdateOf(const NodeContext& c) { return c.attr<Region>("update").graph(); }

// --- push ------------------------------------------------------------------------------------------------------------

absl::Status InferPush(InferContext& c) {
  const std::string& axis = c.attr<std::string>("axis");
  const bool has_axis = c.mesh().has_axis(axis);
  if (!c.mesh().empty() && !has_axis)
    return c.Error("C1") << "there is no axis '" << axis << "' in the mesh " << c.mesh().ToString();
  if (!IsFloat(c.dtype(0))) return c.Error("C2") << "x is " << c.operand(0) << ", expected floats";
  if (!c.attr<bool>("synchronous") && has_axis && *c.mesh().axis_size(axis) > 1)
    return c.Error("C3") << "an asynchronous push in a program with the mesh " << c.mesh().ToString();
  if (c.attr<bool>("synchronous") && c.attr<int64_t>("max_staleness") >= 0)
    return c.Error("C4") << "max_staleness is " << c.attr<int64_t>("max_staleness") << " for a synchronous push";
  return c.SetResult(c.operand(0));
}

// Servers add what the ranks push, so the operand must be a partial sum.
void PlacePush(PlacementContext& c) {
  const Placement& x = c.operand(0);
  const bool is_own = c.mesh_axis().name == c.attr<std::string>("axis");
  const bool is_share = x.is_partial(ReduceKind::kSum);
  const bool is_fine = is_own ? is_share || (x.is_replicated() && c.axis_size() == 1) : x.is_replicated();
  if (!is_fine) {
    return c.Fail("the gradient for %" + c.attr<std::string>("key") + " is " + x.ToString() +
                  ", but parameter servers add each rank's term of a sum over the batch; steps that use the sum of all "
                  "ranks before the optimizer, such as clipping (clip) and micro-batches (accumulate), need "
                  "strategy=\"all_reduce\"");
  }
  c.Result(Placement::Replicated());
}

std::vector<Value> DecomposePush(DecomposeContext& c) {
  const std::string& axis = c.attr<std::string>("axis");
  if (!c.b().graph().mesh().has_axis(axis)) return {c.operand(0)};
  return {c.b().AllReduce(c.operand(0), axis, ReduceKind::kSum)};
}

// --- pull ------------------------------------------------------------------------------------------------------------

absl::Status InferPull(InferContext& c) {
  const Graph& update = UpdateOf(c);
  if (c.num_operands() != update.inputs().size())
    return c.Error("C1") << c.num_operands() << " operands, the update has " << update.inputs().size() << " inputs";
  for (size_t i = 0; i < c.num_operands(); ++i) {
    const Input& input = update.inputs()[i];
    if (c.operand(i) != input.value.type()) {
      return c.Error("C1") << "operand " << i << " is " << c.operand(i) << ", input %" << input.name()
                           << " of the update is " << input.value.type();
    }
    const bool is_gradient = i == 0;
    if (input.is_data() != is_gradient || (i == 1 && !input.is_state))
      return c.Error("C2") << "input %" << input.name() << " of the update is number " << i;
  }
  for (const Node& node : update.nodes()) {
    if (node.op().ranks_eval()) return c.Error("C3") << "the update holds " << node.Describe();
  }
  std::vector<TensorType> types;
  for (const Result& result : update.results()) types.push_back(result.value.type());
  const bool has_value = c.num_operands() > 1 && !types.empty() && update.results()[0].is_state &&
                         update.results()[0].name == update.inputs()[1].name();
  if (!has_value) return c.Error("C4") << "the first result of the update is not the next value of its first state";
  return c.SetResults(std::move(types));
}

absl::Status EvalPull(EvalContext& c) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < c.num_operands(); ++i) inputs.push_back(c.operand(i));
  ASSIGN_OR_RETURN(std::vector<Tensor> results, InterpretOneRank(UpdateOf(c), inputs));
  for (size_t i = 0; i < results.size(); ++i) c.result(i) = std::move(results[i]);
  return absl::OkStatus();
}

// Servers keep whole variables. (A variable that is split would be gathered here, and the operand would no longer be
// the state. Compilation for servers refuses such a program.)
void PlacePull(PlacementContext& c) {
  if (!ops::PlaceLocal(c)) c.RequireAll(Placement::Replicated());
}

double PullFlops(const Node& node) {
  double sum = 0;
  for (const Node& inner : node.attr<Region>("update").graph().nodes()) sum += FlopsOf(inner);
  return sum;
}

std::vector<Value> DecomposePull(DecomposeContext& c) {
  const Graph& update = UpdateOf(c);
  ValueMap outer;
  for (size_t i = 0; i < c.num_operands(); ++i) outer[update.inputs()[i].value] = c.operand(i);
  for (const Node& node : update.nodes()) c.b().Copy(node, outer);
  if (!c.b().status().ok()) return std::vector<Value>(update.results().size());
  std::vector<Value> results;
  for (const Result& result : update.results()) results.push_back(outer.at(result.value));
  return results;
}

}  // namespace

//===-- push ------------------------------------------------------------------------------------------------------===//
const OpDef& PushOp() {
  static const OpDef def =
      OpDef("push")
          .Doc(
              "Sends the gradient x to the parameter servers that keep `key`. The result is the gradient of their "
              "update: the sum over all ranks of a mesh axis, in rank order; x itself in a program without a mesh, "
              "such as that of a worker of asynchronous servers. With servers, only `pull` can use it.")
          .Operand("x")
          .Attr<std::string>("axis", "the mesh axis over whose ranks x is summed")
          .Attr<std::string>("key", "the servers' name of the variable: the name of its state")
          .OptionalAttr<bool>("synchronous", true, "an update waits for the gradients of all workers")
          .OptionalAttr<int64_t>("max_staleness", -1,
                                 "if not synchronous: the number of updates that a worker may be ahead of the slowest "
                                 "one; -1: any number")
          .In(AtLeast(-1))
          .OptionalAttr<int64_t>("bigarray_bound", 1'000'000,
                                 "a variable with more elements is split evenly between all servers, if its update is "
                                 "elementwise")
          .In(AtLeast(1))
          .Trait(kOpaque)
          .Trait(kOfServers)
          .Constraint("C1", "axis is an axis of the mesh, if there is one")
          .Constraint("C2", "x is of floats")
          .Constraint("C3", "an asynchronous push is in a program of one rank")
          .Constraint("C4", "a synchronous push has no max_staleness")
          .Infer(InferPush)
          .EvalAcrossRanks(ops::EvalSumOverRanks)
          .Precision(PrecisionRule::kAsDeclared)
          .NoGradient("updates are where differentiation ends")
          .Place(PlacePush)
          .Decompose(DecomposePush);
  return def;
}

//===-- pull ------------------------------------------------------------------------------------------------------===//
const OpDef& PullOp() {
  static const OpDef def =
      OpDef("pull")
          .Doc(
              "The variable `key` after the servers' update by the pushed gradient. `update` is the graph that they "
              "compile. The operands are its inputs: the pushed gradient, the variable, then states that the servers "
              "keep, and settings. The results are its results, the variable first.")
          .Operand("pushed")
          .Variadic("states")
          .Attr<std::string>("key", "the servers' name of the variable")
          .Attr<Region>("update", "the graph of the update")
          .Trait(kOpaque)
          .Trait(kOfServers)
          .Constraint("C1", "the operands have the types of the update's inputs, in order")
          .Constraint("C2", "the first input of the update is data, the second a state, the others states or settings")
          .Constraint("C3", "ranks do not communicate in the update")
          .Constraint("C4", "the first result of the update is the next value of its first state")
          .Infer(InferPull)
          .Eval(EvalPull)
          .Flops(PullFlops)
          .Precision(PrecisionRule::kAsDeclared)
          .NoGradient("updates are where differentiation ends")
          .Place(PlacePull)
          .Decompose(DecomposePull);
  return def;
}

}  // namespace lockstep
