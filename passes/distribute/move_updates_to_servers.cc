#include "passes/distribute/move_updates_to_servers.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "core/op_def.h"
#include "passes/optimize/dce.h"

namespace lockstep::passes {
namespace {

constexpr char kGradient[] = "gradient", kValue[] = "value";

size_t GradientOf(const Node& update) { return update.op().operand_names().size() - 1; }

// Moves one optimizer node into a graph of its own, which the servers compile.
class Cut {
 public:
  Cut(Graph& graph, Node& update, const ServerOptions& options) : graph_(graph), update_(update), options_(options) {}

  absl::Status Run() {
    RETURN_IF_ERROR(CheckResults());
    for (size_t i = 0; i < update_.operands().size(); ++i) {
      if (i != GradientOf(update_)) RETURN_IF_ERROR(Collect(update_.operand(i)));
    }
    for (const Input* state : StatesOf()) RETURN_IF_ERROR(CollectNext(*state));
    RETURN_IF_ERROR(MakeUpdate());
    return Replace();
  }

  // A state, and the result of the pull that is its next value.
  struct Served {
    std::string state;
    Value next;
  };
  const std::vector<Served>& served() const { return served_; }  // the variable first

 private:
  ErrorStream Error() const {
    return InvalidArgument() << "strategy=\"parameter_server\": " << update_.Describe() << ": ";
  }
  const std::string& variable() const { return update_.operand(0).name(); }

  // Checks that the node's results are exactly the next values of its states.
  absl::Status CheckResults() const {
    for (size_t i = 0; i < update_.num_results(); ++i) {
      const Value state = update_.operand(i);
      const Input* const input = graph_.FindInput(state.name());
      const Result* const next = graph_.FindResult(state.name(), /*is_state=*/true);
      if (input == nullptr || !input->is_state || input->value != state)
        return Error() << "it updates %" << state.name() << ", which is no state";
      if (next == nullptr || next->value != update_.result(i)) {
        return Error()
               << "the next value of %" << state.name()
               << " is not the optimizer's result but computed from it, as with the scaling of an f16 loss or with "
                  "uneven=True, which skip some updates; servers run only the optimizer";
      }
    }
    return absl::OkStatus();
  }

  // Adds the nodes and inputs that a value is computed from. Requires that the value is not the gradient.
  absl::Status Collect(Value value) {
    if (!value.node->is_input()) {
      if (!nodes_.insert(value.node).second) return absl::OkStatus();
      if (value.node->op().ranks_eval() || value.node->op().has_trait(kOptimizer))
        return Error() << "it depends on " << value.node->Describe() << ", which no server has";
      for (const Value operand : value.node->operands()) RETURN_IF_ERROR(Collect(operand));
      return absl::OkStatus();
    }
    const Input* const input = graph_.FindInput(value.name());
    if (input->is_data()) return Error() << "it depends on the input %" << value.name() << ", which no server has";
    if (std::find(inputs_.begin(), inputs_.end(), input) == inputs_.end()) inputs_.push_back(input);
    return absl::OkStatus();
  }

  std::vector<const Input*> StatesOf() const {
    std::vector<const Input*> states;
    for (const Input* input : inputs_) {
      if (input->is_state) states.push_back(input);
    }
    return states;
  }

  // Adds the nodes that compute the next value of a state that the optimizer reads but does not update, such as the
  // number of the step. The servers compute it as the workers did.
  absl::Status CollectNext(const Input& state) {
    const Result* const next = graph_.FindResult(state.name(), /*is_state=*/true);
    if (next == nullptr || next->value.node == &update_) return absl::OkStatus();
    const size_t known = inputs_.size();
    RETURN_IF_ERROR(Collect(next->value));
    if (inputs_.size() == known) return absl::OkStatus();
    return Error() << "the next value of %" << state.name() << ", which it takes, depends on %"
                   << inputs_.back()->name();
  }

  // Makes the update's graph. Its inputs and results have the order of the operands and results of the pull.
  absl::Status MakeUpdate() {
    ValueMap map;
    const Value gradient = update_.operand(GradientOf(update_));
    ASSIGN_OR_RETURN(map[gradient], body_.AddInput(kGradient, gradient.type()));
    for (const Input* input : inputs_) {
      operands_.push_back(input->value);
      const bool is_variable = input->value == update_.operand(0);
      if (input->is_state) {
        ASSIGN_OR_RETURN(map[input->value],
                         body_.AddInput(is_variable ? kValue : input->name(), input->value.type(), /*is_state=*/true));
      } else {
        ASSIGN_OR_RETURN(map[input->value], body_.AddSetting(input->name(), *input->setting));
      }
    }
    for (const Node& node : graph_.nodes()) {
      if (nodes_.contains(&node) || &node == &update_) RETURN_IF_ERROR(body_.InsertCopy(node, map).status());
    }
    for (const Input* state : StatesOf()) {
      const Result* const next = graph_.FindResult(state->name(), /*is_state=*/true);
      if (next == nullptr) continue;
      next_.push_back(next->value);
      next_names_.push_back(state->name());
      const bool is_variable = state->value == update_.operand(0);
      RETURN_IF_ERROR(body_.AddStateResult(is_variable ? kValue : state->name(), map.at(next->value)));
    }
    return absl::OkStatus();
  }

  // Returns the node right after the gradient. A push before it starts while other gradients are still computed.
  Node* NodeAfterGradient() const {
    const Value gradient = update_.operand(GradientOf(update_));
    for (auto it = graph_.nodes().begin(); it != graph_.nodes().end(); ++it) {
      if (&*it == gradient.node) return &*std::next(it);  // the update comes after it
    }
    return &update_;
  }

  absl::Status Replace() {
    const std::string key = variable();
    const Value gradient = update_.operand(GradientOf(update_));
    ASSIGN_OR_RETURN(Node* const push, graph_.Insert({.op = &GetOp("push"),
                                                      .operands = {gradient},
                                                      .attributes = {{"axis", options_.axis},
                                                                     {"key", key},
                                                                     {"synchronous", options_.synchronous},
                                                                     {"max_staleness", options_.max_staleness},
                                                                     {"bigarray_bound", options_.bigarray_bound}},
                                                      .source = update_.source(),
                                                      .names = {gradient.name() + ".pushed"}},
                                                     NodeAfterGradient()));
    std::vector<Value> operands = {push->result()};
    operands.insert(operands.end(), operands_.begin(), operands_.end());
    ASSIGN_OR_RETURN(Node* const pull,
                     graph_.Insert({.op = &GetOp("pull"),
                                    .operands = std::move(operands),
                                    .attributes = {{"key", key}, {"update", Region(std::move(body_))}},
                                    .source = update_.source(),
                                    .names = {}},
                                   &update_));
    std::vector<std::pair<Value, std::string>> names;
    for (size_t i = 0; i < next_.size(); ++i) {
      served_.push_back({next_names_[i], pull->result(i)});
      if (next_[i].node != &update_) continue;
      names.emplace_back(pull->result(i), next_[i].name());
      graph_.ReplaceUses(next_[i], pull->result(i));
    }
    graph_.Erase(&update_);
    for (const auto& [next, name] : names) graph_.SetName(next, name);
    return absl::OkStatus();
  }

  Graph& graph_;
  Node& update_;
  const ServerOptions& options_;
  std::set<const Node*> nodes_;         // the nodes of the update's graph besides the optimizer
  std::vector<const Input*> inputs_;    // the variable first
  std::vector<Value> operands_, next_;  // the pull's operands behind the push; the values that its results replace
  std::vector<std::string> next_names_;
  std::vector<Served> served_;
  Graph body_{"update"};
};

// Checks that no node or result of the graph reads a state of the servers, before or after its update.
absl::Status CheckIsServers(const Graph& graph, const std::string& state) {
  const Value before = graph.FindInput(state)->value;
  const Value after = graph.FindResult(state, /*is_state=*/true)->value;
  std::string reader;
  for (const Node* user : before.node->users()) {
    if (!user->Is("pull") || user->operand(1) == before) reader = user->Describe();
  }
  for (const Node* user : after.node->users()) {
    for (const Value operand : user->operands()) {
      if (operand == after) reader = user->Describe();
    }
  }
  for (const Result& result : graph.results()) {
    const bool is_own = result.is_state && result.name == state;
    if (!is_own && (result.value == before || result.value == after)) reader = "result " + result.name;
  }
  if (reader.empty()) return absl::OkStatus();
  return InvalidArgument() << "strategy=\"parameter_server\": " << reader << " reads %" << state
                           << ", which the servers keep";
}

absl::StatusOr<bool> MoveUpdates(Graph& graph, const ServerOptions& options) {
  std::vector<Node*> updates;
  for (Node& node : graph.nodes()) {
    if (node.op().has_trait(kOptimizer)) updates.push_back(&node);
  }
  if (updates.empty()) return false;
  std::vector<std::pair<std::string, Value>> kept;  // states, each with its next value from the first update
  for (Node* update : updates) {
    Cut cut(graph, *update, options);
    RETURN_IF_ERROR(cut.Run());
    for (size_t i = 1; i < cut.served().size(); ++i) {
      const auto& [state, next] = cut.served()[i];
      const auto is_it = [&](const auto& each) { return each.first == state; };
      if (std::none_of(kept.begin(), kept.end(), is_it)) kept.emplace_back(state, next);
    }
  }
  for (const auto& [state, next] : kept) {
    for (size_t i = 0; i < graph.results().size(); ++i) {
      const Result& result = graph.results()[i];
      if (!result.is_state || result.name != state) continue;
      graph.set_result_value(i, next);
    }
  }
  RemoveDeadNodes(graph);  // the nodes that counted steps
  for (const auto& [state, next] : kept) graph.SetName(next, state + ".next");
  for (const auto& [state, next] : kept) RETURN_IF_ERROR(CheckIsServers(graph, state));
  return true;
}

}  // namespace

Pass MoveUpdatesToServers(std::optional<ServerOptions> options) {
  return {"move-updates-to-servers",
          [options = std::move(options)](Graph& graph) -> absl::StatusOr<bool> {
            if (!options) return false;
            return MoveUpdates(graph, *options);
          },
          Keeps::kResults};  // holds for training steps; random programs are none
}

}  // namespace lockstep::passes
