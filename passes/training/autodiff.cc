#include "passes/training/autodiff.h"

#include "core/backpropagate.h"
#include "core/builder.h"

namespace lockstep::passes {
absl::StatusOr<std::vector<Value>> AddGradients(Graph& graph, Value of, const std::vector<Value>& wrt, Value factor) {
  if (of.shape().rank() != 0 || !IsFloat(of.dtype())) {
    return InvalidArgument() << "gradients are taken of a float scalar; %" << of.name() << " is " << of.type();
  }
  for (Value value : wrt) {
    if (!IsFloat(value.dtype()))
      return InvalidArgument() << "no gradient with respect to %" << value.name() << " of type " << value.type();
  }
  Builder b(graph);
  if (!factor) factor = b.SplatLike(1.0, of);
  RETURN_IF_ERROR(b.status());
  return Backpropagate(graph, {{of, factor}}, wrt);
}

namespace {

// Returns the inputs with these names; all float states if there are no names.
absl::StatusOr<std::vector<Value>> InputsNamed(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<Value> inputs;
  for (const std::string& name : names) {
    const Input* input = graph.FindInput(name);
    if (!input) return NotFound() << "graph @" << graph.name() << " has no input %" << name;
    inputs.push_back(input->value);
  }
  for (const Input& input : graph.inputs()) {
    if (names.empty() && input.is_state && IsFloat(input.value.dtype())) inputs.push_back(input.value);
  }
  return inputs;
}

absl::StatusOr<bool> AddGradientsAsResults(Graph& graph, const std::string& of, const std::vector<std::string>& wrt) {
  const Result* loss = graph.FindResult(of);
  if (!loss) return NotFound() << "graph @" << graph.name() << " has no result " << of;
  ASSIGN_OR_RETURN(const std::vector<Value> inputs, InputsNamed(graph, wrt));
  ASSIGN_OR_RETURN(const std::vector<Value> gradients, AddGradients(graph, loss->value, inputs));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i]) return InvalidArgument() << "result " << of << " does not depend on %" << inputs[i].name();
    RETURN_IF_ERROR(graph.AddResult("grad/" + inputs[i].name(), gradients[i]));
  }
  return !inputs.empty();
}

}  // namespace

Pass Autodiff(std::string of, std::vector<std::string> wrt) {
  return {"autodiff",
          [of = std::move(of), wrt = std::move(wrt)](Graph& graph) { return AddGradientsAsResults(graph, of, wrt); },
          Keeps::kResults};
}

}  // namespace lockstep::passes
