#include "backends/emit_executable.h"

#include <algorithm>

#include "backends/build_id.h"
#include "backends/memory_limit.h"
#include "backends/planning/buffer_plan.h"
#include "backends/planning/certificate.h"
#include "backends/planning/emit_steps.h"
#include "backends/planning/least_bytes.h"
#include "backends/planning/reuse_operands.h"
#include "backends/planning/served_states.h"
#include "backends/planning/share_states.h"

namespace lockstep {
namespace {

// Adds buffers for the ranks' copies of states that servers update, and lists states that only servers have.
void AddServedStates(const Graph& graph, std::vector<ServedState> served, Executable& executable) {
  executable.served = std::move(served);
  for (ServedState& served : executable.served) {
    const auto state = std::find_if(executable.states.begin(), executable.states.end(),
                                    [&](const ValueInfo& info) { return info.name == served.name; });
    LOCKSTEP_CHECK(state != executable.states.end()) << served.name;
    served.buffer = state->buffer;
  }
  for (const std::string& name : StatesOfServers(graph)) {
    const TensorType& type = graph.FindInput(name)->value.type();
    executable.states.push_back({name, type, type, {}, -1, true});
  }
}

// Returns the states in the order of the graph, including those that only other ranks have.
std::vector<ValueInfo> AllStates(Program& program, const Graph& graph) {
  std::vector<ValueInfo> states;
  for (const Input& input : graph.inputs()) {
    if (!input.is_state) continue;
    for (std::vector<ValueInfo>* const some : {&program.states, &program.states_elsewhere}) {
      const auto found =
          std::find_if(some->begin(), some->end(), [&](const ValueInfo& info) { return info.name == input.name(); });
      if (found != some->end()) states.push_back(*found);
    }
  }
  return states;
}

}  // namespace

absl::StatusOr<Executable> EmitExecutable(Graph graph, const Backend& backend, const Target& target,
                                          const CompileOptions& options) {
  std::string graph_text = graph.ToString();
  ASSIGN_OR_RETURN(std::vector<ServedState> served, ServedStatesOf(graph));
  std::vector<StateToShare> shared;
  if (options.shared_weights) {
    ASSIGN_OR_RETURN(shared, ShareStates(graph, std::string(kDataAxis)));
  }
  // Makes kernels for nodes. Collectives start as early and are waited for as late as possible; results and next states
  // are written in place; values that do not fit are recomputed.
  ASSIGN_OR_RETURN(LoweredProgram lowered, LowerWithin(options.memory_limit, graph, shared, backend, target));
  Program& program = lowered.program;
  const uint64_t least_bytes = LeastBytes(program);
  GuardSharedStates(program);                    // ranks do not read a state while another rank writes it
  ReuseOperands(program);                        // a kernel may overwrite its last-used operands
  const BufferPlan plan = PlanBuffers(program);  // the other values share an arena by lifetimes
  const uint64_t kernels_constant_bytes = program.KernelsConstantBytes();
  StepList steps = EmitSteps(program, plan);
  ASSIGN_OR_RETURN(Certificate certificate, CertifyOrder(steps, plan.buffers, graph.mesh(), program.lanes));

  Executable executable;
  executable.name = graph.name();
  executable.backend = backend.name();
  executable.mesh = graph.mesh();
  executable.threads = target.threads;
  executable.buffers = plan.buffers;
  executable.constants = std::move(program.constants);
  executable.inputs = std::move(program.inputs);
  executable.results = std::move(program.results);
  if (program.parts_along.empty()) {
    for (size_t i = 0; i < program.states.size(); ++i) {
      if (program.WholeOf(static_cast<int>(i)) == static_cast<int>(i))
        executable.states.push_back(std::move(program.states[i]));
    }
  } else {
    executable.states = AllStates(program, graph);
  }
  AddServedStates(graph, std::move(served), executable);
  executable.parts_along = program.parts_along;
  executable.lanes = std::move(program.lanes);
  executable.settings = std::move(program.settings);
  executable.settings_buffer = plan.settings;
  executable.steps = std::move(steps);
  executable.prepare = std::move(program.prepare);
  const bool always_communicates = std::none_of(executable.steps.begin(), executable.steps.end(), [](const auto& step) {
    return step->info().collective && step->info().collective->when >= 0;
  });
  if (always_communicates) executable.combined_run = std::move(program.combined_run);  // the same steps in all runs
  executable.num_collectives = program.num_collectives;
  executable.recomputed = lowered.work;
  executable.least_bytes = least_bytes;
  executable.ceilings = target.ceilings;
  executable.kernels_constant_bytes = kernels_constant_bytes;
  executable.certificate = std::move(certificate);
  executable.fingerprint = "build " + BuildId() + "\n" + target.fingerprint;
  executable.graph_text = std::move(graph_text);
  return executable;
}

}  // namespace lockstep
