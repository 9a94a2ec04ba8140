#include "passes/training/training_mode.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "core/random.h"
#include "passes/training/inference_mode.h"

namespace lockstep::passes {
namespace {

bool IsState(const Graph& graph, Value value) {
  if (!value.node->Is("input")) return false;
  const Input* input = graph.FindInput(value.name());
  return input != nullptr && input->is_state;
}

// A running statistic, and what it is after the nodes so far.
struct Statistic {
  Value state, next;
  std::string where;  // the last of them
};

// Moves the running statistic `state` towards that of this batch.
void Update(std::vector<Statistic>& statistics, Builder& b, Value state, Value batch, double momentum,
            double correction, const std::string& where) {
  auto it = std::find_if(statistics.begin(), statistics.end(), [&](const Statistic& s) { return s.state == state; });
  if (it == statistics.end()) it = statistics.insert(it, {state, state, ""});
  const Value kept = b.Scale(it->next, momentum);
  it->next = b.Add(kept, b.Scale(batch, (1 - momentum) * correction));
  it->where = where;
}

absl::Status Train(Graph& graph, Node& node, const TrainingModeOptions& options, std::vector<Statistic>& statistics) {
  const Value x = node.operand(0), mean = node.operand(3), variance = node.operand(4);
  const double momentum = options.momentum.value_or(node.attr<double>("momentum"));
  Builder b(graph, &node, node.source());
  const std::vector<Value> results =
      b.Ops("batch_norm_training", {x, node.operand(1), node.operand(2)},
            {{"epsilon", node.attr<double>("epsilon")}, {"statistics", options.statistics}});
  RETURN_IF_ERROR(b.status());
  // A single value per channel has no unbiased variance; PyTorch refuses it.
  const int64_t count = x.shape().num_elements() / std::max<int64_t>(x.shape()[1], 1) / options.accumulate;
  if (count < 2) {
    ErrorStream error = FailedPrecondition()
                        << node.Describe() << " normalises " << x.type() << ", one value per channel";
    if (options.accumulate > 1) error << " of each of " << options.accumulate << " micro-batches";
    return error << "; training needs at least two";
  }
  const double unbiased = static_cast<double>(count) / static_cast<double>(count - 1);
  Update(statistics, b, mean, results[1], momentum, 1.0, node.Describe());
  Update(statistics, b, variance, results[2], momentum, unbiased, node.Describe());
  RETURN_IF_ERROR(b.status());
  const std::string name = node.result_name();
  graph.ReplaceUses(node.result(), results[0]);
  graph.Erase(&node);
  graph.SetName(results[0], name);
  return absl::OkStatus();
}

absl::StatusOr<bool> NormalizeByTheBatch(Graph& graph, const TrainingModeOptions& options) {
  std::vector<Node*> nodes;
  for (Node& node : graph.nodes()) {
    if (node.Is("batch_norm_inference") && IsState(graph, node.operand(3)) && IsState(graph, node.operand(4)))
      nodes.push_back(&node);
  }
  std::vector<Statistic> statistics;
  for (Node* node : nodes) {
    RETURN_IF_ERROR(Train(graph, *node, options, statistics));
  }
  for (const Statistic& statistic : statistics) {
    graph.SetName(statistic.next, statistic.state.name() + ".next");
    RETURN_IF_ERROR(Annotate(graph.AddStateResult(statistic.state.name(), statistic.next), statistic.where));
  }
  return !nodes.empty();
}

absl::Status Drop(Graph& graph, Node& node) {
  Builder b(graph, &node, node.source());
  const auto seed = static_cast<uint64_t>(node.attr<int64_t>("seed"));
  const Dropped dropped = RandomDropout(b, node.operand(0), node.operand(1), std::rotl(seed, 32));
  RETURN_IF_ERROR(Annotate(b.status(), node.Describe()));
  const std::string name = node.result_name();
  graph.ReplaceUses(node.result(0), dropped.result);
  graph.ReplaceUses(node.result(1), dropped.mask);
  graph.Erase(&node);
  graph.SetName(dropped.result, name);
  return absl::OkStatus();
}

absl::StatusOr<bool> DropAll(Graph& graph) {
  std::vector<Node*> nodes;
  for (Node& node : graph.nodes()) {
    if (node.Is("dropout")) {
      nodes.push_back(&node);
    } else if (const Node* const in_body = FindDropout(node)) {
      return Unimplemented() << in_body->Describe() << " is in the body of a loop, in which each iteration would drop "
                             << "the same; dropout=\"off\" trains without";
    }
  }
  for (Node* node : nodes) RETURN_IF_ERROR(Drop(graph, *node));
  return !nodes.empty();
}

absl::StatusOr<bool> TrainAll(Graph& graph, const TrainingModeOptions& options) {
  if (options.momentum && !(*options.momentum >= 0 && *options.momentum <= 1)) {
    return InvalidArgument() << "momentum is " << *options.momentum << ", expected 0 to 1";
  }
  if (options.accumulate < 1)
    return InvalidArgument() << "accumulate is " << options.accumulate << ", expected at least 1";
  ASSIGN_OR_RETURN(const bool normalizes, NormalizeByTheBatch(graph, options));
  ASSIGN_OR_RETURN(const bool drops, options.dropout ? DropAll(graph) : InferenceMode().run(graph));
  return normalizes || drops;
}

}  // namespace

Pass TrainingMode(TrainingModeOptions options) {
  return {"training-mode", [options](Graph& graph) { return TrainAll(graph, options); }, Keeps::kNothing};
}

}  // namespace lockstep::passes
