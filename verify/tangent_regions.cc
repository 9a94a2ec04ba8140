// Ops that consist of other ops: those of a decomposition, and loops.

#include <algorithm>
#include <utility>

#include "core/ops/scan.h"
#include "verify/exact_interpreter.h"
#include "verify/tangent.h"
#include "verify/tangent_rule.h"

namespace lockstep::verify {
namespace {

Tangents TangentsOfInputs(const Graph& graph, const std::vector<const ExactTensor*>& dx) {
  Tangents tangents;
  for (size_t i = 0; i < dx.size(); ++i) {
    if (dx[i]) tangents.emplace(graph.inputs()[i].value, *dx[i]);
  }
  return tangents;
}

absl::StatusOr<ExactValues> ValuesOf(const Graph& graph, const std::vector<const ExactTensor*>& x,
                                     Assumptions& assumptions) {
  std::vector<RankTensors> inputs;
  for (const ExactTensor* tensor : x) inputs.push_back({*tensor});
  return RunExactly(graph, inputs, assumptions);
}

absl::Status ThroughGraph(Forward& f, const Graph& graph) {
  ASSIGN_OR_RETURN(const ExactValues values, ValuesOf(graph, f.x, f.assumptions));
  std::vector<Value> wanted(f.is_wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Result* const result = graph.FindResult("y" + std::to_string(i));
    if (f.is_wanted[i] && result) wanted[i] = result->value;
  }
  ASSIGN_OR_RETURN(const Tangents tangents,
                   RunTangents(graph, values, TangentsOfInputs(graph, f.dx), wanted, f.assumptions));
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (const auto found = tangents.find(wanted[i]); wanted[i] && found != tangents.end()) f.dy[i] = found->second;
  }
  return absl::OkStatus();
}

// Its mean and variance are constants to gradients.
absl::Status ThroughFirstResult(Forward& f) {
  std::fill(f.is_wanted.begin() + 1, f.is_wanted.end(), false);
  return ThroughDecomposition(f);
}

// One run of a loop with the tangents of what it carries.
class TangentOfScan {
 public:
  explicit TangentOfScan(Forward& f) : f_(f), form_(f.node), x_(f.x.size()), dx_(f.x.size()) {}

  absl::Status Run() {
    for (size_t k = 0; k < form_.num_inputs(); ++k) {
      x_[k] = *f_.x[k];
      if (f_.dx[k]) dx_[k] = *f_.dx[k];
    }
    for (size_t k = 0; k < form_.num_results(); ++k) {
      const Value value = form_.body->results()[k].value;
      wanted_.push_back(k < form_.carried || f_.is_wanted[k] ? value : Value());
    }
    for (int64_t i = 0; i < form_.length; ++i) RETURN_IF_ERROR(Iterate(form_.position(i)));
    for (size_t k = 0; k < form_.carried; ++k) f_.dy[k] = dx_[k];
    return absl::OkStatus();
  }

 private:
  absl::Status Iterate(int64_t at) {
    for (size_t k = form_.carried; k < form_.first_constant(); ++k) {
      const TensorType& type = form_.body->inputs()[k].value.type();
      x_[k] = f_.x[k]->Part(type, at);
      if (f_.dx[k]) dx_[k] = f_.dx[k]->Part(type, at);
    }
    std::vector<const ExactTensor*> x, dx;
    for (size_t k = 0; k < x_.size(); ++k) x.push_back(&x_[k]), dx.push_back(dx_[k] ? &*dx_[k] : nullptr);
    ASSIGN_OR_RETURN(const ExactValues values, ValuesOf(*form_.body, x, f_.assumptions));
    ASSIGN_OR_RETURN(const Tangents tangents,
                     RunTangents(*form_.body, values, TangentsOfInputs(*form_.body, dx), wanted_, f_.assumptions));
    for (size_t k = 0; k < form_.num_results(); ++k) {
      const ExactTensor* const tangent = wanted_[k] ? Find(tangents, wanted_[k]) : nullptr;
      if (k < form_.carried) {
        x_[k] = values.at(form_.body->results()[k].value)[0];
        dx_[k] = tangent ? std::optional(*tangent) : std::nullopt;
      } else if (tangent) {
        AddToResult(k, *tangent, at);
      }
    }
    return absl::OkStatus();
  }

  void AddToResult(size_t k, const ExactTensor& tangent, int64_t at) {
    std::vector<Exact>& dy = f_.out(k);
    if (form_.is_stacked(k)) f_.dy[k]->SetPart(at, tangent);
    else AddTo(dy, tangent.numbers());
  }

  Forward& f_;
  const ScanForm form_;
  std::vector<ExactTensor> x_;
  std::vector<std::optional<ExactTensor>> dx_;
  std::vector<Value> wanted_;  // the results of the body, null if not wanted
};

absl::Status ThroughScan(Forward& f) { return TangentOfScan(f).Run(); }

}  // namespace

absl::Status ThroughDecomposition(Forward& f) {
  f.assumptions.insert(f.node.op_name() + " means its decomposition");
  ASSIGN_OR_RETURN(const Graph graph, DecompositionOf(f.node));
  return ThroughGraph(f, graph);
}

std::map<std::string_view, Rule> RegionRules() {
  return {{"batch_norm_training", ThroughFirstResult}, {"scan", ThroughScan}};
}

}  // namespace lockstep::verify
