#include "verify/check_gradients.h"

#include <map>
#include <string>
#include <utility>

#include "core/op_def.h"
#include "passes/training/train_step.h"
#include "verify/random_inputs.h"
#include "verify/tangent.h"

namespace lockstep::verify {
namespace {

Exact Inner(const ExactTensor& x, const ExactTensor& y) {
  ExactProducts sum;
  for (size_t i = 0; i < x.size(); ++i) sum.Add(x.numbers()[i], y.numbers()[i]);
  return sum.total();
}

enum class Verdict { kRight, kWrong, kNotFinite };

class GradientCheck {
 public:
  GradientCheck(const Graph& graph, Value loss, const std::vector<GradientOf>& gradients, ExactValues values,
                Assumptions& assumptions)
      : graph_(graph), loss_(loss), gradients_(gradients), values_(std::move(values)), assumptions_(assumptions) {}

  absl::Status Run(uint64_t seed) {
    std::vector<ExactTensor> directions;
    for (const GradientOf& one : gradients_)
      directions.push_back(RandomTensor(one.value.type(), 0, seed = MixedBits(seed)));
    ASSIGN_OR_RETURN(const Verdict all, Judge(gradients_, directions));
    if (all == Verdict::kRight) return absl::OkStatus();
    std::string wrong;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      ASSIGN_OR_RETURN(const Verdict one, Judge({gradients_[i]}, {directions[i]}));
      const std::string& name = gradients_[i].value.name();
      if (one == Verdict::kWrong) wrong += (wrong.empty() ? "" : ", ") + name;
      if (one == Verdict::kNotFinite)
        assumptions_.insert("the gradient of " + loss_.name() + " by " + name +
                            " is not finite for random inputs, and is not checked");
    }
    if (wrong.empty()) return absl::OkStatus();
    return FailedPrecondition() << "the gradients of " << loss_.name() << " by " << wrong << " are not its derivatives";
  }

 private:
  absl::StatusOr<Verdict> Judge(const std::vector<GradientOf>& gradients, const std::vector<ExactTensor>& directions) {
    Tangents given;
    Exact expected;
    for (size_t i = 0; i < gradients.size(); ++i) {
      given.emplace(gradients[i].value, directions[i]);
      expected += Inner(values_.at(gradients[i].gradient)[0], directions[i]);
    }
    ASSIGN_OR_RETURN(const Tangents tangents, RunTangents(graph_, values_, given, {loss_}, assumptions_));
    const ExactTensor* const found = Find(tangents, loss_);
    const Exact tangent = found ? found->numbers()[0] : Exact();
    const bool is_finite = expected.is_finite() || values_.at(loss_)[0].numbers()[0].is_finite();
    if (!is_finite || !tangent.is_finite()) return Verdict::kNotFinite;
    return tangent == expected ? Verdict::kRight : Verdict::kWrong;
  }

  const Graph& graph_;
  const Value loss_;
  const std::vector<GradientOf>& gradients_;
  const ExactValues values_;
  Assumptions& assumptions_;
};

// --- Steps ----------------------------------------------------------------------------------------------------------

constexpr std::string_view kGradientPrefix = "grad/";

// The gradient of each trained state of the step that has one: the value of that name, or the one that its optimizer
// gets if that is the gradient of another state, too.
std::map<std::string, Value> GradientsOfStates(const Graph& step) {
  std::map<std::string, Value> by_name, gradients;
  for (const Node& const_node : step.nodes()) {
    Node& node = const_cast<Node&>(const_node);
    for (size_t i = 0; i < node.num_results(); ++i) by_name[node.result_name(i)] = node.result(i);
  }
  for (const Input& input : step.inputs()) {
    const auto named = by_name.find(std::string(kGradientPrefix) + input.name());
    const bool is_its = named != by_name.end() && named->second.type() == input.value.type();
    if (input.is_state && is_its) gradients[input.name()] = named->second;
  }
  for (const Node& node : step.nodes()) {
    if (!node.op().has_trait(kOptimizer) || !node.operand(0).node->is_input()) continue;
    const Value gradient = node.operand(node.op().operand_names().size() - 1);
    if (gradient.name().starts_with(kGradientPrefix)) gradients.emplace(node.operand(0).name(), gradient);
  }
  return gradients;
}

}  // namespace

absl::Status CheckGradients(const Graph& graph, Value loss, const std::vector<GradientOf>& gradients,
                            const std::vector<ExactTensor>& inputs, uint64_t seed, Assumptions& assumptions) {
  std::vector<RankTensors> of_rank;
  for (const ExactTensor& input : inputs) of_rank.push_back({input});
  ASSIGN_OR_RETURN(ExactValues values, RunExactly(graph, of_rank, assumptions));
  return GradientCheck(graph, loss, gradients, std::move(values), assumptions).Run(seed);
}

absl::Status CheckGradientsOfStep(const Graph& step, uint64_t seed, Assumptions& assumptions) {
  if (!step.mesh().empty()) return InvalidArgument() << "@" << step.name() << " is distributed already";
  const Result* const loss = step.FindResult("loss");
  if (loss == nullptr) return NotFound() << "@" << step.name() << " has no result loss";
  const std::map<std::string, Value> by_state = GradientsOfStates(step);
  if (by_state.empty()) return NotFound() << "@" << step.name() << " has no gradients";
  for (const std::string& state : passes::StatesTrainedBy(step)) {
    if (!by_state.contains(state)) assumptions.insert("the gradient of " + state + " has no name, and is not checked");
  }
  std::vector<GradientOf> gradients;
  for (const Input& input : step.inputs()) {
    if (const auto found = by_state.find(input.name()); found != by_state.end())
      gradients.push_back({input.value, found->second});
  }
  return CheckGradients(step, loss->value, gradients, RandomInputs(step, seed), MixedBits(~seed), assumptions);
}

}  // namespace lockstep::verify
