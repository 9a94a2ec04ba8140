#include "backends/server_update.h"

#include <memory>
#include <utility>

#include "backends/backend.h"
#include "backends/compile.h"
#include "core/printer.h"
#include "core/verifier.h"
#include "runtime/comm/in_process.h"
#include "runtime/execution/executor.h"

namespace lockstep {
namespace {

constexpr char kValue[] = "value", kGradient[] = "gradient", kNext[] = "value.next";

// The machine that runs all updates of a server.
struct ServerMachine {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> communicator;
  RankDevice device;
};

// Makes the value an input and a result of the graph, so that the server keeps it in memory that workers can read.
absl::StatusOr<Graph> ExposeValue(const Graph& graph, const TensorType& type) {
  const Input* const value = graph.FindInput(kValue);
  const Input* const gradient = graph.FindInput(kGradient);
  const Result* const next = graph.FindResult(kValue, /*is_state=*/true);
  if (!graph.mesh().empty()) return InvalidArgument() << "update @" << graph.name() << " is of several ranks";
  if (value == nullptr || !value->is_state || next == nullptr || gradient == nullptr || !gradient->is_data())
    return InvalidArgument() << "update @" << graph.name()
                             << " has no input %gradient, or no state %value with a next value";
  for (const Input* input : {value, gradient}) {
    if (input->value.type() != type) {
      return InvalidArgument() << "update @" << graph.name() << ": %" << input->name() << " is " << input->value.type()
                               << ", and the array is " << type;
    }
  }
  Graph taken(graph.name());
  ValueMap map;
  for (const Input& input : graph.inputs()) {
    if (input.is_data() && input.name() != kGradient)
      return InvalidArgument() << "update @" << graph.name() << " has an input %" << input.name();
    ASSIGN_OR_RETURN(map[input.value], input.name() == kValue ? taken.AddInput(kValue, type)
                                                              : taken.AddInputLike(input, input.value.type(), {}));
  }
  for (const Node& node : graph.nodes()) RETURN_IF_ERROR(taken.InsertCopy(node, map).status());
  for (const Result& result : graph.results()) {
    const Value of = map.at(result.value);
    RETURN_IF_ERROR(!result.is_state        ? taken.AddResult(result.name, of)
                    : result.name == kValue ? taken.AddResult(kNext, of)
                                            : taken.AddStateResult(result.name, of));
  }
  return taken;
}

class CompiledUpdate final : public Update {
 public:
  CompiledUpdate(TensorType type, std::shared_ptr<ServerMachine> machine, std::unique_ptr<Executor> executor)
      : type_(std::move(type)), machine_(std::move(machine)), executor_(std::move(executor)) {}

  absl::Status Run(const std::byte* value, const std::byte* gradient, std::byte* next) override {
    const NamedInput inputs[] = {{kValue, {type_, value}}, {kGradient, {type_, gradient}}};
    const NamedResult results[] = {{kNext, {type_, next}}};
    return executor_->Run(inputs, results);
  }
  std::vector<std::pair<std::string, TensorType>> states() const override {
    std::vector<std::pair<std::string, TensorType>> states;
    for (const ValueInfo& state : executor_->executable().states) states.emplace_back(state.name, state.local_type);
    return states;
  }
  absl::Status ReadState(std::string_view name, std::byte* data) override {
    ASSIGN_OR_RETURN(const TensorType type, TypeOf(name));
    return executor_->ReadState(name, {type, data});
  }
  absl::Status WriteState(std::string_view name, const std::byte* data) override {
    ASSIGN_OR_RETURN(const TensorType type, TypeOf(name));
    return executor_->AssignState(name, {type, data});
  }
  absl::StatusOr<bool> Set(std::string_view setting, double value) override {
    for (const SettingInfo& each : executor_->executable().settings) {
      if (each.name != setting) continue;
      RETURN_IF_ERROR(executor_->Set(setting, value));
      return true;
    }
    return false;
  }

 private:
  absl::StatusOr<TensorType> TypeOf(std::string_view name) const {
    for (const ValueInfo& state : executor_->executable().states) {
      if (state.name == name) return state.local_type;
    }
    return NotFound() << "the update has no state " << name;
  }

  const TensorType type_;
  const std::shared_ptr<ServerMachine> machine_;  // must outlive the executor
  const std::unique_ptr<Executor> executor_;
};

absl::StatusOr<std::unique_ptr<Update>> Make(const std::shared_ptr<ServerMachine>& machine, const std::string& text,
                                             const TensorType& type) {
  ASSIGN_OR_RETURN(const Graph graph, ParseGraph(text));
  RETURN_IF_ERROR(Verify(graph));
  ASSIGN_OR_RETURN(Graph taken, ExposeValue(graph, type));
  ASSIGN_OR_RETURN(Executable executable, Compile(std::move(taken), *machine->backend, CompileOptions()));
  ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                   Executor::Load(std::move(executable), machine->device.communicator, machine->device.device.get()));
  return std::make_unique<CompiledUpdate>(type, machine, std::move(executor));
}

}  // namespace

absl::StatusOr<MakeUpdate> MakeCompiledUpdates() {
  auto machine = std::make_shared<ServerMachine>();  // shared by the function and by the updates that it makes
  ASSIGN_OR_RETURN(machine->backend, CreateBackend("cpu"));
  ASSIGN_OR_RETURN(machine->communicator, CreateSingle());
  ASSIGN_OR_RETURN(machine->device, machine->backend->OpenDevice(*machine->communicator));
  return MakeUpdate([machine](const std::string& text, const TensorType& type) { return Make(machine, text, type); });
}

}  // namespace lockstep
