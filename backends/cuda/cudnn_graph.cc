#include "backends/cuda/cudnn_graph.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace lockstep::cuda {

CudnnDescriptor::CudnnDescriptor(const CudnnApi& api, cudnnBackendDescriptorType_t type, std::string what)
    : api_(api), what_(std::move(what)) {
  status_ = api.Check(api.BackendCreateDescriptor(type, &value_), "cudnnBackendCreateDescriptor of " + what_);
}

CudnnDescriptor::~CudnnDescriptor() {
  if (value_ != nullptr) (void)api_.BackendDestroyDescriptor(value_);
}

CudnnDescriptor& CudnnDescriptor::SetBytes(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                           int64_t count, const void* elements) {
  if (!status_.ok()) return *this;
  status_ = api_.Check(api_.BackendSetAttribute(value_, name, type, count, elements),
                       "cudnnBackendSetAttribute " + std::to_string(name) + " of " + what_);
  return *this;
}

absl::Status CudnnDescriptor::Finalize() {
  RETURN_IF_ERROR(status_);
  return status_ = api_.Check(api_.BackendFinalize(value_), "cudnnBackendFinalize of " + what_);
}

absl::StatusOr<int64_t> CudnnDescriptor::Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                             int64_t most, void* elements) const {
  RETURN_IF_ERROR(status_);
  int64_t count = 0;
  RETURN_IF_ERROR(api_.Check(api_.BackendGetAttribute(value_, name, type, most, &count, elements),
                             "cudnnBackendGetAttribute " + std::to_string(name) + " of " + what_));
  return elements == nullptr ? count : std::min(count, most);
}

namespace {

struct NoteRow {
  cudnnBackendNumericalNote_t note;
  const char* name;
};
constexpr NoteRow kRefusedNotes[] = {
    {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, "not deterministic"},
    {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, "narrows its operands"},
    {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, "adds in a narrower type"},
    {CUDNN_NUMERICAL_NOTE_FFT, "Fourier's"},
    {CUDNN_NUMERICAL_NOTE_WINOGRAD, "Winograd's"},
    {CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4, "Winograd's"},
    {CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, "Winograd's"},
    {CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13, "Winograd's"},
};
constexpr NoteRow kTensorCores = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, "multiplies in TF32"};

// Returns why an engine with these notes is not used; empty if it may be used.
std::string Refusal(std::span<const cudnnBackendNumericalNote_t> notes, const EngineRequirements& wishes) {
  const auto has = [&](const NoteRow& row) { return std::find(notes.begin(), notes.end(), row.note) != notes.end(); };
  for (const NoteRow& row : kRefusedNotes) {
    if (has(row)) return row.name;
  }
  return !wishes.tensor_cores && has(kTensorCores) ? kTensorCores.name : "";
}

// Returns the plan of a configuration, or the reason why its engine does not meet the wishes or does not support the
// operation.
absl::Status TryConfiguration(const CudnnHandle& cudnn, const CudnnDescriptor& config, const EngineRequirements& wishes,
                              std::string& engine_name, std::vector<CudnnDescriptor>& made) {
  CudnnDescriptor engine(cudnn.api(), CUDNN_BACKEND_ENGINE_DESCRIPTOR, "an engine");
  cudnnBackendDescriptor_t into = engine.value();
  RETURN_IF_ERROR(config.Get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &into).status());
  int64_t index = 0;
  RETURN_IF_ERROR(engine.Get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index).status());
  engine_name = "engine " + std::to_string(index);
  std::array<cudnnBackendNumericalNote_t, 32> notes;
  ASSIGN_OR_RETURN(const int64_t count, engine.Get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                                   static_cast<int64_t>(notes.size()), notes.data()));
  const std::string refusal = Refusal(std::span(notes).first(static_cast<size_t>(count)), wishes);
  if (!refusal.empty()) return Unimplemented() << refusal;
  CudnnDescriptor plan(cudnn.api(), CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "the plan");
  RETURN_IF_ERROR(plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config)
                      .Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, cudnn.handle())
                      .Finalize());
  int64_t workspace = 0;
  RETURN_IF_ERROR(plan.Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace).status());
  if (workspace < 0 || static_cast<uint64_t>(workspace) > wishes.workspace_bytes) {
    return Unimplemented() << "wants a workspace of " << workspace << " bytes";
  }
  made.push_back(std::move(engine));
  made.push_back(std::move(plan));
  return absl::OkStatus();
}

// Returns the configurations that the heuristics of `mode` recommend for the graph, the best first.
absl::StatusOr<std::vector<CudnnDescriptor>> Configurations(const CudnnApi& api, const CudnnDescriptor& graph,
                                                            cudnnBackendHeurMode_t mode) {
  CudnnDescriptor heuristics(api, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the heuristics");
  RETURN_IF_ERROR(heuristics.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
                      .Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode)
                      .Finalize());
  ASSIGN_OR_RETURN(const int64_t count,
                   heuristics.Get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr));
  std::vector<CudnnDescriptor> found;
  std::vector<cudnnBackendDescriptor_t> into;
  for (int64_t i = 0; i < count; ++i) {
    found.emplace_back(api, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "an engine's configuration");
    into.push_back(found.back().value());
  }
  if (count == 0) return found;
  ASSIGN_OR_RETURN(const int64_t filled,
                   heuristics.Get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, into.data()));
  while (static_cast<int64_t>(found.size()) > filled) found.pop_back();
  return found;
}

struct Mode {
  cudnnBackendHeurMode_t mode;
  const char* name;
};
constexpr Mode kModes[] = {
    {CUDNN_HEUR_MODE_A, "mode A"}, {CUDNN_HEUR_MODE_B, "mode B"}, {CUDNN_HEUR_MODE_FALLBACK, "the fallback"}};

}  // namespace

absl::StatusOr<std::vector<CudnnPlan>> PlansFor(const CudnnHandle& cudnn, const CudnnDescriptor& operation,
                                                const EngineRequirements& wishes, size_t most,
                                                const std::string& choice) {
  const CudnnApi& api = cudnn.api();
  const auto graph =
      std::make_shared<CudnnDescriptor>(api, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the operation graph");
  RETURN_IF_ERROR(graph->Set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation)
                      .Set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, cudnn.handle())
                      .Finalize());
  std::vector<CudnnPlan> plans;
  std::string tried;
  for (const Mode& mode : kModes) {
    if (plans.size() == most) break;
    auto configurations = Configurations(api, *graph, mode.mode);
    if (!configurations.ok()) {
      tried += std::string("; ") + mode.name + ": " + std::string(configurations.status().message());
      continue;
    }
    tried += std::string("; ") + mode.name + (configurations->empty() ? ": no engine" : "");
    for (size_t i = 0; i < configurations->size() && plans.size() < most; ++i) {
      const std::string number = std::string(mode.name) + ", number " + std::to_string(i + 1) + ", ";
      if (!choice.empty() && !choice.starts_with(number)) continue;
      std::string engine = "an engine";
      std::vector<CudnnDescriptor> made;
      const absl::Status status = TryConfiguration(cudnn, (*configurations)[i], wishes, engine, made);
      if (!status.ok()) {
        tried += ", " + engine + ": " + std::string(status.message());
      } else if (!choice.empty() && choice != number + engine) {
        tried += ", " + engine + ", not that of the choice " + choice;
      } else {
        CudnnPlan& plan = plans.emplace_back();
        plan.graph = graph;
        plan.choice = number + engine;
        plan.parts.push_back(std::move((*configurations)[i]));
        std::move(made.begin(), made.end(), std::back_inserter(plan.parts));
      }
    }
  }
  if (!plans.empty()) return plans;
  return Unimplemented() << "no engine for it that may be used with a workspace of " << wishes.workspace_bytes
                         << " bytes" << tried;
}

absl::Status RunPlan(const CudnnHandle& cudnn, const CudnnPlan& plan, CudaStream& stream, std::span<const int64_t> ids,
                     std::span<void* const> pointers, void* workspace) {
  const CudnnApi& api = cudnn.api();
  RETURN_IF_ERROR(
      stream.device().CheckLibrary(api.Check(api.SetStream(cudnn.handle(), stream.handle()), "cudnnSetStream")));
  CudnnDescriptor pack(api, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "the variant pack");
  RETURN_IF_ERROR(pack.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids)
                      .Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers)
                      .Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
                      .Finalize());
  RETURN_IF_ERROR(stream.device().WaitForQueueSpace());
  return stream.device().CheckLibrary(
      api.Check(api.BackendExecute(cudnn.handle(), plan.plan(), pack.value()), "cudnnBackendExecute"));
}

}  // namespace lockstep::cuda
