#include "backends/compile.h"

#include <algorithm>

#include "backends/build_id.h"
#include "backends/memory_limit.h"
#include "backends/planning/buffer_plan.h"
#include "backends/planning/certificate.h"
#include "backends/planning/emit_steps.h"
#include "backends/planning/reuse_operands.h"
#include "backends/planning/served_states.h"
#include "backends/planning/share_states.h"
#include "core/local_types.h"
#include "core/op_def.h"
#include "passes/pipeline.h"
#include "passes/stages/cut_into_stages.h"

namespace lockstep {
namespace {

using passes::kStageAxis;

Mesh WithoutStages(const Mesh& mesh) {
  std::vector<MeshAxis> axes = mesh.axes();
  std::erase_if(axes, [](const MeshAxis& axis) { return axis.name == kStageAxis; });
  return Mesh(std::move(axes));
}

// The mesh that the graph still has to be distributed over: none if that is done. It may be cut into stages later.
absl::StatusOr<Mesh> RemainingMesh(const Graph& graph, const Mesh& mesh) {
  if (graph.mesh().empty()) return WithoutStages(mesh);
  if (!mesh.empty() && !(mesh == graph.mesh()) && !(WithoutStages(mesh) == graph.mesh())) {
    return InvalidArgument() << "graph @" << graph.name() << " is distributed over the mesh " << graph.mesh().ToString()
                             << ", and is to be compiled for " << mesh.ToString();
  }
  return Mesh();
}

// Pushes and pulls are steps where there are servers, and elsewhere what they mean.
bool IsOfServers(const Node& node) { return node.Is("push") || node.Is("pull"); }

// What servers cannot be asked for, and what they leave out.
absl::Status CheckServers(const Graph& graph, const Backend& backend, const CompileOptions& options) {
  if (!options.servers) return absl::OkStatus();
  const auto error = [&] {
    return InvalidArgument() << "graph @" << graph.name() << ": strategy=\"parameter_server\"";
  };
  if (backend.name() != "cpu") return error() << " is for backend=\"cpu\", and this is \"" << backend.name() << "\"";
  if (!options.wire.empty())
    return error() << ": what is pushed travels as it is, and not as wire=\"" << options.wire << "\"";
  if (options.shared_weights)
    return error() << ": servers have the weights, which shared_weights would have ranks update";
  if (!graph.mesh().empty()) return error() << ": it is distributed already, over the mesh " << graph.mesh().ToString();
  RETURN_IF_ERROR(CheckMeshOfServers(options.mesh, options.servers->axis));
  const bool updates = std::any_of(graph.nodes().begin(), graph.nodes().end(),
                                   [](const Node& node) { return node.op().has_trait(kOptimizer); });
  if (!updates) return error() << ": it has no optimizer, and so nothing for servers to do";
  return absl::OkStatus();
}

// Gives the copies of what servers update their buffers, and lists what servers alone have among the states.
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

// Stages have parts of the program of their own, which not all options know of.
absl::Status CheckStages(const Graph& graph, const Mesh& mesh, const CompileOptions& options, const Backend& backend) {
  const bool is_step = std::any_of(graph.nodes().begin(), graph.nodes().end(),
                                   [](const Node& node) { return node.op().has_trait(kOptimizer); });
  ErrorStream error = InvalidArgument() << "graph @" << graph.name() << " is compiled for the stages of the mesh "
                                        << mesh.ToString() << ", ";
  if (!is_step)
    return error << "and is no training step with an optimizer, which alone is cut into stages; a "
                    "step with SGD(0.0) computes a loss and changes nothing";
  if (!options.rank) return error << "and CompileOptions::rank does not say whose part";
  if (*options.rank < 0 || *options.rank >= mesh.num_ranks()) return error << "for rank " << *options.rank;
  if (options.shard_optimizer && !options.shared_weights)
    return error << "whose ranks have weights of their own, and nothing that shard_optimizer could share";
  if (options.shared_weights) return error << "which ranks of several stages cannot do with shared_weights";
  if (options.wire == "int8") return error << "whose gradients cannot travel with wire=\"int8\"; bf16 can";
  if (options.servers) return error << "whose optimizers strategy=\"parameter_server\" does not move";
  if (options.measured) return error << "whose buckets cannot be chosen by a report (buckets=)";
  if (backend.name() != "cpu") return error << "which backend=\"cpu\" alone runs, not " << backend.name();
  return absl::OkStatus();
}

// States in the order of the graph, also those that other ranks alone have.
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

// The graph after all passes, for a backend.
absl::StatusOr<Executable> Emit(Graph graph, const Backend& backend, const Target& target,
                                const CompileOptions& options) {
  std::string graph_text = graph.ToString();
  ASSIGN_OR_RETURN(std::vector<ServedState> served, ServedStatesOf(graph));
  std::vector<StateToShare> shared;
  if (options.shared_weights) {
    ASSIGN_OR_RETURN(shared, ShareStates(graph, std::string(kDataAxis)));
  }
  // Kernels for nodes; collectives start as early, and are waited for as late as can be; results and next states are
  // written in place; what does not fit is computed again.
  ASSIGN_OR_RETURN(LoweredProgram lowered, LowerWithin(options.memory_limit, graph, shared, backend, target));
  Program& program = lowered.program;
  GuardSharedStates(program);                    // ranks read no state that another one writes
  ReuseOperands(program);                        // where a kernel may write over what it read last
  const BufferPlan plan = PlanBuffers(program);  // the rest shares an arena by lifetimes
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
  executable.whole = std::move(program.whole);
  executable.num_collectives = program.num_collectives;
  executable.recomputed = lowered.work;
  executable.kernels_constant_bytes = kernels_constant_bytes;
  executable.certificate = std::move(certificate);
  executable.fingerprint = "build " + BuildId() + "\n" + target.fingerprint;
  executable.graph_text = std::move(graph_text);
  return executable;
}

}  // namespace

absl::StatusOr<Executable> Compile(Graph graph, const Backend& backend, const CompileOptions& options) {
  ASSIGN_OR_RETURN(graph, ToGlobalTypes(graph));  // of a rank's program, the one that it is a part of
  ASSIGN_OR_RETURN(Target target, backend.MakeTarget({options.threads, options.isa, options.tf32, options.tune}));
  passes::PipelineOptions pipeline;
  ASSIGN_OR_RETURN(pipeline.mesh, RemainingMesh(graph, options.mesh));
  const Mesh mesh = options.mesh.empty() ? graph.mesh() : options.mesh;
  if (const int64_t stages = mesh.axis_size(kStageAxis).value_or(1); stages > 1) {
    RETURN_IF_ERROR(CheckStages(graph, mesh, options, backend));
    target.place = PlaceOfPart{std::string(kStageAxis), mesh.Coordinate(*options.rank, kStageAxis)};
    if (!graph.mesh().has_axis(kStageAxis)) pipeline.stages = {.stages = stages, .mesh = mesh};
  }
  RETURN_IF_ERROR(CheckServers(graph, backend, options));
  pipeline.ranks = mesh;
  pipeline.placements = options.placements;
  pipeline.shard_optimizer = options.shard_optimizer;
  pipeline.replicated = options.replicated;
  pipeline.servers = options.servers;
  pipeline.wire = options.wire;
  pipeline.factors.operations_per_byte = options.operations_per_byte;
  pipeline.buckets = {options.bucket_bytes};
  pipeline.buckets.measured = options.measured;
  pipeline.supports = [supports = target.supports, has_servers = options.servers.has_value()](const Node& node) {
    return IsOfServers(node) ? has_servers : supports(node);
  };
  pipeline.prefers_f32 = target.prefers_f32;
  pipeline.fusion = target.fusion;
  pipeline.optimize = options.optimize;
  // Verifies before and after.
  const absl::Status passed = passes::RunPasses(passes::MakePipeline(pipeline), graph, options.debug);
  if (absl::IsUnimplemented(passed)) return Annotate(passed, "backend=\"" + std::string(backend.name()) + "\"");
  RETURN_IF_ERROR(passed);
  absl::StatusOr<Executable> executable = Emit(graph.Clone(), backend, target, options);
  if (executable.ok() || options.debug.reproducer_directory.empty()) return executable;
  return passes::WithReproducer(executable.status(), "emit", graph.name(), graph.ToString(), options.debug);
}

}  // namespace lockstep
