#include "passes/training/training_mode.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "core/random.h"
#include "passes/formula.h"
#include "passes/training/inference_mode.h"
#include "passes/training/uneven.h"

namespace lockstep::passes {
namespace {

// Returns the state that the value is, perhaps behind stop_gradient; null if it is another value.
Value StateOf(const Graph& graph, Value value) {
  while (value.node->Is("stop_gradient")) value = value.node->operand(0);
  const Input* input = value.node->is_input() ? graph.FindInput(value.name()) : nullptr;
  return input != nullptr && input->is_state ? value : Value();
}

// A running statistic, and its value after the nodes so far.
struct Statistic {
  Value state, next;
  std::string where;  // the last node that moved it
};

// Moves the running statistic `state` towards that of this batch.
void Update(std::vector<Statistic>& statistics, Builder& b, Value state, Value batch, double momentum,
            const std::string& where) {
  auto it = std::find_if(statistics.begin(), statistics.end(), [&](const Statistic& s) { return s.state == state; });
  if (it == statistics.end()) it = statistics.insert(it, {state, state, ""});
  const Value kept = b.Scale(it->next, momentum);
  it->next = b.Add(kept, b.Scale(batch, 1 - momentum));
  it->where = where;
}

// The normalised values of a node in training, and the statistics of its batch; the variance is unbiased.
struct Normalized {
  Value y, mean, variance;
};

absl::StatusOr<Normalized> NormalizeByAll(Builder& b, const Node& node, const std::string& statistics) {
  const Value x = node.operand(0);
  const std::vector<Value> results = b.Ops("batch_norm_training", {x, node.operand(1), node.operand(2)},
                                           {{"epsilon", node.attr<double>("epsilon")}, {"statistics", statistics}});
  RETURN_IF_ERROR(b.status());
  // This is an error if a channel has a single value, as in PyTorch.
  const Value unbiased = b.Op("unbiased_variance", {x, results[2]}, {{"statistics", statistics}});
  RETURN_IF_ERROR(Annotate(b.status(), node.Describe()));
  return Normalized{results[0], results[1], unbiased};
}

// Normalises by the rows that do not pad. If there is one value per channel, the variance 0 is used without correction.
absl::StatusOr<Normalized> NormalizeByRows(Builder& b, const Node& node, Value rows) {
  const Value given = node.operand(0);
  const Shape& shape = given.shape();
  absl::StatusOr<Value> of_dim_0 = RowsOf(b, rows, shape[0]);
  if (!of_dim_0.ok()) return Annotate(of_dim_0.status(), node.Describe());
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < shape.rank(); ++dim) dims.push_back(dim);
  const double of_a_row = static_cast<double>(shape.num_elements()) / static_cast<double>(shape[0] * shape[1]);
  const DType dtype = given.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  const Formula x(b, b.Convert(given, dtype)), is_there(b, b.Broadcast(b.Convert(*of_dim_0, dtype), shape, {0}));
  const Formula there(b, b.Convert(*of_dim_0, dtype));
  const Formula count(b, b.Scale(b.ReduceSum(there.value(), {0}), of_a_row));
  const auto along = [&](Formula channels) { return Along(channels, x, 1); };
  const auto mean_of = [&](Formula values) {
    const Formula sum(b, b.ReduceSum(values.value(), dims));
    return sum / Formula(b, b.Broadcast(count.value(), sum.value().shape(), {}));
  };
  // Padding does not enter sums, whatever its values are.
  const auto there_alone = [&](Formula values) { return Where(is_there == 0, 0, values); };
  const Formula mean = mean_of(there_alone(x)), centred = there_alone(x - along(mean));
  // The derivative of the variance by the mean is 0, since the variance is minimal at the mean. Without this derivative
  // the backward pass has no sum that depends on another sum.
  const Formula variance = mean_of(Square(there_alone(x - along(Held(mean)))));
  const Formula scale(b, b.Convert(node.operand(1), dtype)), bias(b, b.Convert(node.operand(2), dtype));
  const Formula factor = scale / Sqrt(variance + node.attr<double>("epsilon"));
  const Formula y = centred * along(factor) + along(bias);
  const Formula others = count - 1, unbiased = count / Where(others < 1, 1, others);
  const Formula corrected = variance * Formula(b, b.Broadcast(unbiased.value(), variance.value().shape(), {}));
  RETURN_IF_ERROR(b.status());
  const auto as_given = [&](Formula value) { return b.Convert(value.value(), given.dtype()); };
  return Normalized{as_given(y), as_given(mean), as_given(corrected)};
}

absl::Status Train(Graph& graph, Node& node, const TrainingModeOptions& options, Value rows,
                   std::vector<Statistic>& statistics) {
  Builder b(graph, &node, node.source());
  ASSIGN_OR_RETURN(const Normalized normalized,
                   rows ? NormalizeByRows(b, node, rows) : NormalizeByAll(b, node, options.statistics));
  const double momentum = options.momentum.value_or(node.attr<double>("momentum"));
  Update(statistics, b, StateOf(graph, node.operand(3)), normalized.mean, momentum, node.Describe());
  Update(statistics, b, StateOf(graph, node.operand(4)), normalized.variance, momentum, node.Describe());
  RETURN_IF_ERROR(b.status());
  const std::string name = node.result_name();
  graph.ReplaceUses(node.result(), normalized.y);
  graph.Erase(&node);
  graph.SetName(normalized.y, name);
  return absl::OkStatus();
}

absl::StatusOr<bool> NormalizeByTheBatch(Graph& graph, const TrainingModeOptions& options, Value rows) {
  std::vector<Node*> nodes;
  for (Node& node : graph.nodes()) {
    if (node.Is("batch_norm_inference") && StateOf(graph, node.operand(3)) && StateOf(graph, node.operand(4)))
      nodes.push_back(&node);
  }
  std::vector<Statistic> statistics;
  for (Node* node : nodes) {
    RETURN_IF_ERROR(Train(graph, *node, options, rows, statistics));
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
                             << "the same elements; use dropout=\"off\" to train without it";
    }
  }
  for (Node* node : nodes) RETURN_IF_ERROR(Drop(graph, *node));
  return !nodes.empty();
}

absl::StatusOr<bool> TrainAll(Graph& graph, const TrainingModeOptions& options) {
  if (options.momentum && !(*options.momentum >= 0 && *options.momentum <= 1)) {
    return InvalidArgument() << "momentum is " << *options.momentum << ", expected 0 to 1";
  }
  Value rows;
  if (options.uneven) {
    if (options.statistics != "global")
      return InvalidArgument() << "statistics is " << options.statistics << ", expected global, as batches need not be "
                               << "full (uneven)";
    ASSIGN_OR_RETURN(rows, AddRows(graph));
  }
  ASSIGN_OR_RETURN(const bool normalizes, NormalizeByTheBatch(graph, options, rows));
  ASSIGN_OR_RETURN(const bool drops, options.dropout ? DropAll(graph) : RemoveDropouts(graph));
  return normalizes || drops || rows;
}

}  // namespace

Pass TrainingMode(TrainingModeOptions options) {
  return {"training-mode", [options](Graph& graph) { return TrainAll(graph, options); }, Keeps::kNothing};
}

}  // namespace lockstep::passes
