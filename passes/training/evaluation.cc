#include "passes/training/evaluation.h"

#include <algorithm>

#include "passes/optimize/recognize_attention.h"
#include "passes/optimize/separate_rows.h"
#include "passes/training/inference_mode.h"
#include "passes/training/uneven.h"

namespace lockstep::passes {
namespace {

// A loss or a metric that was added: its terms, and their sum.
struct Measured {
  std::string name;
  Value value;
  std::vector<LossSum> terms;
};

absl::StatusOr<Measured> AddMeasured(Graph& graph, const std::string& name, const std::vector<LossSpec>& specs,
                                     Value rows) {
  Measured measured{name, {}, {}};
  if (specs.empty()) return InvalidArgument() << name << " has no losses";
  for (const LossSpec& spec : specs) {
    ASSIGN_OR_RETURN(const LossSum term, AddLossSum(graph, spec, rows));
    Builder b(graph, nullptr, name);
    const Value value = term.count ? b.Div(term.sum, term.count) : term.sum;
    measured.value = measured.value ? b.Add(measured.value, value) : value;
    RETURN_IF_ERROR(b.status());
    measured.terms.push_back(term);
  }
  return measured;
}

absl::Status ShowResults(Graph& graph, const Measured& measured) {
  RETURN_IF_ERROR(graph.AddResult(measured.name, measured.value));
  for (size_t i = 0; i < measured.terms.size(); ++i) {
    const std::string term = measured.name + "/" + std::to_string(i);
    RETURN_IF_ERROR(graph.AddResult(term + "/sum", measured.terms[i].sum));
    if (measured.terms[i].count) RETURN_IF_ERROR(graph.AddResult(term + "/count", measured.terms[i].count));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeEvaluation(Graph& graph, const EvaluationSpec& spec) {
  for (const Pass& pass : {InferenceMode(), RecognizeAttention(), SeparateRows()})
    RETURN_IF_ERROR(pass.run(graph).status());
  Value rows;
  if (spec.uneven) {
    ASSIGN_OR_RETURN(rows, AddRows(graph));
  }
  std::vector<Measured> all;
  ASSIGN_OR_RETURN(all.emplace_back(), AddMeasured(graph, "loss", spec.losses, rows));
  for (const auto& [name, specs] : spec.metrics) {
    absl::StatusOr<Measured> metric = AddMeasured(graph, name, specs, rows);
    if (!metric.ok()) return Annotate(metric.status(), "metric " + name);
    all.push_back(*std::move(metric));
  }
  const auto is_taken = [&](const std::string& name) {
    return (rows && name == kRows) ||
           std::any_of(all.begin(), all.end(), [&](const Measured& measured) { return measured.name == name; });
  };
  for (size_t i = graph.results().size(); i-- > 0;) {
    const Result& result = graph.results()[i];
    if (!result.is_state && (!spec.keep_results || is_taken(result.name))) graph.RemoveResult(i);
  }
  for (const Measured& measured : all) RETURN_IF_ERROR(ShowResults(graph, measured));
  return rows ? FinishRows(graph, rows) : absl::OkStatus();
}

Pass Evaluation(EvaluationSpec spec) {
  return {"evaluation",
          [spec = std::move(spec)](Graph& graph) -> absl::StatusOr<bool> {
            RETURN_IF_ERROR(MakeEvaluation(graph, spec));
            return true;
          },
          Keeps::kNothing};
}

}  // namespace lockstep::passes
