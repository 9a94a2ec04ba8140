#include "passes/training/uneven.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/op_def.h"
#include "passes/distribute/distribute.h"
#include "passes/optimize/dce.h"
#include "passes/optimize/separate_rows.h"

namespace lockstep::passes {
namespace {

constexpr char kRowsSource[] = "rows";

// Returns the data inputs that are split along the data axis.
std::vector<const Input*> BatchesOf(const Graph& model) {
  std::vector<const Input*> batches;
  for (const Input& input : model.inputs()) {
    if (input.is_data() && input.value.placement(std::string(kDataAxis)).is_split()) batches.push_back(&input);
  }
  return batches;
}

absl::StatusOr<int64_t> RowsOfBatches(const Graph& model) {
  const std::vector<const Input*> batches = BatchesOf(model);
  if (batches.empty())
    return InvalidArgument() << "uneven: no input of graph @" << model.name()
                             << " is a batch, which is split along axis " << kDataAxis;
  for (const Input* input : batches) {
    const int64_t dim = input->value.placement(std::string(kDataAxis)).dim();
    if (dim != 0)
      return Unimplemented() << "uneven: input %" << input->name() << " " << input->value.type()
                             << " has its batch in dimension " << dim << ", expected 0";
    if (input->value.shape()[0] == batches[0]->value.shape()[0]) continue;
    return InvalidArgument() << "uneven: inputs %" << batches[0]->name() << " " << batches[0]->value.type() << " and %"
                             << input->name() << " " << input->value.type() << " have different numbers of rows";
  }
  return batches[0]->value.shape()[0];
}

bool IsRows(const Input& input) {
  return input.is_data() && input.value.dtype() == DType::kF32 && input.value.shape().rank() == 1;
}

// Returns an error if an op mixes rows. Distributes the model over ranks with one row each, which then must not
// communicate. With fewer ranks, a rank could mix its own rows unnoticed.
absl::Status CheckRowsAreApart(const Graph& model, int64_t rows) {
  if (rows < 2) return absl::OkStatus();
  Graph graph = model.Clone();
  for (size_t i = 0; i < graph.results().size(); ++i) graph.set_result_placements(i, {});
  ASSIGN_OR_RETURN(Graph placed, DistributeGraph(graph, Mesh({{std::string(kDataAxis), rows}})));
  RETURN_IF_ERROR(Dce().run(placed).status());
  for (const Node& node : placed.nodes()) {
    if (!node.op().collective() || node.users().empty()) continue;  // only a result: no row sees it
    // The error names the op that sums over rows, or, for an all_gather, the op that reads all rows.
    const bool sums = node.op().collective() != CollectiveOp::kAllGather;
    return InvalidArgument() << "uneven: " << (sums ? node.operand(0).node : node.users()[0])->Describe()
                             << " mixes the rows of a batch, so that padding would affect other rows; "
                             << "uneven=False takes only full batches";
  }
  return absl::OkStatus();
}

}  // namespace

bool IsUneven(const Graph& graph) {
  const Input* const rows = graph.FindInput(kRows);
  const Result* const count = graph.FindResult(kRows);
  return rows != nullptr && IsRows(*rows) && count != nullptr &&
         count->value.type() == TensorType{DType::kF32, Shape()};
}

absl::StatusOr<Value> AddRows(Graph& model) {
  if (const Input* const own = model.FindInput(kRows)) {
    return InvalidArgument() << "uneven: graph @" << model.name() << " has an input %" << kRows << " "
                             << own->value.type() << " of its own, and the step gets one of this name, which tells "
                             << "which rows pad: give it another name, or set uneven=False";
  }
  ASSIGN_OR_RETURN(const int64_t rows, RowsOfBatches(model));
  for (Node& node : model.nodes()) {
    for (size_t i = 0; i < node.num_results(); ++i) {
      if (node.result_name(i) == kRows) model.SetName(node.result(i), "rows.of_model");
    }
  }
  RETURN_IF_ERROR(SeparateRows().run(model).status());
  RETURN_IF_ERROR(CheckRowsAreApart(model, rows));
  return model.AddInput(std::string(kRows), {DType::kF32, Shape({rows})}, /*is_state=*/false,
                        {{std::string(kDataAxis), Placement::Split(0)}});
}

absl::StatusOr<Value> FindOrAddRows(Graph& model) {
  const Input* const rows = model.FindInput(kRows);
  return rows != nullptr && IsRows(*rows) ? rows->value : AddRows(model);
}

absl::StatusOr<Value> RowsOf(Builder& b, Value rows, int64_t extent) {
  const int64_t number = rows.shape()[0];
  if (extent == number) return rows;
  if (number == 0 || extent % number != 0)
    return InvalidArgument() << "has " << extent << " rows, expected a multiple of the batch's " << number;
  const Value each = b.Broadcast(rows, Shape({number, extent / number}), {0});
  const Value all = b.Reshape(each, Shape({extent}));
  RETURN_IF_ERROR(b.status());
  return all;
}

absl::Status FinishRows(Graph& step, Value rows) {
  Builder b(step, nullptr, kRowsSource);
  const Value count = b.ReduceSum(rows, {0});
  const Value is_any = b.Compare(count, b.SplatLike(0, count), "gt");
  RETURN_IF_ERROR(b.status());
  RETURN_IF_ERROR(UpdateStatesIf(step, is_any, {}, "if_rows"));
  return step.AddResult(std::string(kRows), count);
}

absl::Status UpdateStatesIf(Graph& graph, Value condition, const std::vector<std::string>& except,
                            std::string_view suffix) {
  Builder b(graph, nullptr, condition.node->source());
  for (size_t i = 0; i < graph.results().size(); ++i) {
    const Result result = graph.results()[i];
    if (!result.is_state || std::find(except.begin(), except.end(), result.name) != except.end()) continue;
    const Value state = graph.FindInput(result.name)->value;
    const Value next = b.Select(b.Broadcast(condition, state.shape(), {}), result.value, state);
    RETURN_IF_ERROR(b.status());
    if (!result.value.node->is_input()) graph.SetName(result.value, result.name + "." + std::string(suffix));
    graph.SetName(next, result.name + ".next");
    graph.set_result_value(i, next);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::passes
