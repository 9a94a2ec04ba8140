// Convolution and its gradients with cuDNN, or a loop that writes zeros if a tensor has no elements. Values are
// channels-last where tensor cores multiply them (convolution_problem.h), filters too.

#include <algorithm>
#include <memory>

#include "backends/cuda/convolution_problem.h"
#include "backends/cuda/cudnn_graph.h"
#include "backends/cuda/emitters.h"
#include "backends/cuda/tuning.h"
#include "core/builder.h"
#include "core/check.h"

namespace lockstep::cuda {
namespace {

enum TensorId : int64_t { kX = 1, kFilter = 2, kY = 3 };

// The cuDNN names of an operation: its descriptor type, and the attributes of its tensors and parameters. `tensors` are
// the ids of the node's operands and result, in this order.
struct OperationRow {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x, filter, y, window, alpha, beta;
  std::array<int64_t, 3> tensors;
};

const OperationRow& RowOf(ConvolutionProblem::Kind kind) {
  static constexpr OperationRow kForward = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                                            {kX, kFilter, kY}};
  static constexpr OperationRow kGradInput = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                                              {kFilter, kY, kX}};
  static constexpr OperationRow kGradFilter = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                                               {kX, kY, kFilter}};
  return kind == ConvolutionProblem::Kind::kForward     ? kForward
         : kind == ConvolutionProblem::Kind::kGradInput ? kGradInput
                                                        : kGradFilter;
}

// One convolution. Its library descriptors are created when the program is loaded, because that needs a GPU.
class Convolution final : public Tunable {
 public:
  Convolution(ConvolutionProblem problem, std::shared_ptr<CudnnHandle> cudnn)
      : problem_(std::move(problem)), cudnn_(std::move(cudnn)) {}

  std::string Key() const override {
    return problem_.ToString() + ", aligned to " + std::to_string(problem_.alignment);
  }
  absl::Status Open() override { return Annotate(MakeOperation(), problem_.ToString()); }
  std::string taken() const override { return problem_.ToString() + ": " + plan_.choice; }

  absl::Status Take(const std::string& choice) override {
    if (!choice.empty() && choice == plan_.choice) return absl::OkStatus();
    absl::StatusOr<std::vector<CudnnPlan>> plans = Plans(1, choice);
    if (!plans.ok()) return Annotate(plans.status(), problem_.ToString());
    plan_ = std::move(plans->front());
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Fastest(CudaDevice& device) override {
    const absl::StatusOr<std::vector<CudnnPlan>> plans = Plans(kMostTimed, "");
    if (!plans.ok()) return Annotate(plans.status(), problem_.ToString());
    ASSIGN_OR_RETURN(const TrialMemory memory, MemoryFor(device));
    const auto queue = [&](size_t i) { return RunIn(memory, (*plans)[i], device); };
    const absl::StatusOr<size_t> fastest = FastestOf(plans->size(), queue, device);
    if (!fastest.ok()) return Annotate(fastest.status(), problem_.ToString());
    return (*plans)[*fastest].choice;
  }

  absl::Status RunOnce(CudaDevice& device) override {
    ASSIGN_OR_RETURN(const TrialMemory memory, MemoryFor(device));
    RETURN_IF_ERROR(RunIn(memory, plan_, device));
    return device.Synchronize();
  }

  absl::Status Run(const KernelArgs& args) {
    LOCKSTEP_CHECK(!plan_.parts.empty()) << problem_.ToString() << " runs in a program that was not prepared";
    return Run(plan_, StreamOf(args), {args.reads[0], args.reads[1], args.writes[0]}, args.scratch);
  }

 private:
  absl::Status Run(const CudnnPlan& plan, CudaStream& stream, const std::array<void*, 3>& pointers,
                   std::byte* workspace) {
    return Annotate(RunPlan(*cudnn_, plan, stream, RowOf(problem_.kind).tensors, pointers, workspace),
                    problem_.ToString());
  }

  absl::Status RunIn(const TrialMemory& memory, const CudnnPlan& plan, CudaDevice& device) {
    return Run(plan, *device.stream(), {memory.part(0), memory.part(1), memory.part(2)}, memory.part(3));
  }

  absl::StatusOr<TrialMemory> MemoryFor(CudaDevice& device) const {
    const auto [x, y, z] = problem_.BytesOfTensors();
    const std::array<uint64_t, 4> sizes = {x, y, z, problem_.WorkspaceLimit()};
    return TrialMemory::Allocate(sizes, "trying " + problem_.ToString(), device);
  }

  absl::StatusOr<std::vector<CudnnPlan>> Plans(size_t most, const std::string& choice) const {
    const EngineRequirements wishes = {.tensor_cores = problem_.type != CUDNN_DATA_FLOAT || problem_.tf32,
                                       .workspace_bytes = problem_.WorkspaceLimit()};
    return PlansFor(*cudnn_, tensors_.back(), wishes, most, choice);
  }

  absl::Status MakeOperation() {
    ASSIGN_OR_RETURN(const size_t x, AddTensor(kX, problem_.x, "x"));
    ASSIGN_OR_RETURN(const size_t filter, AddTensor(kFilter, problem_.filter, "the filter"));
    ASSIGN_OR_RETURN(const size_t y, AddTensor(kY, problem_.y, "y"));
    ASSIGN_OR_RETURN(const size_t window, AddWindow());
    const OperationRow& row = RowOf(problem_.kind);
    CudnnDescriptor& operation = tensors_.emplace_back(cudnn_->api(), row.type, "the operation");
    operation.Set(row.x, tensors_[x])
        .Set(row.filter, tensors_[filter])
        .Set(row.y, tensors_[y])
        .Set(row.window, tensors_[window]);
    if (problem_.compute == CUDNN_DATA_DOUBLE) {
      operation.Set(row.alpha, CUDNN_TYPE_DOUBLE, 1.0).Set(row.beta, CUDNN_TYPE_DOUBLE, 0.0);
    } else {
      operation.Set(row.alpha, CUDNN_TYPE_FLOAT, 1.0f).Set(row.beta, CUDNN_TYPE_FLOAT, 0.0f);
    }
    return operation.Finalize();
  }

  absl::StatusOr<size_t> AddTensor(int64_t id, const ConvolutionProblem::Side& side, const char* what) {
    RETURN_IF_ERROR(tensors_.emplace_back(cudnn_->api(), CUDNN_BACKEND_TENSOR_DESCRIPTOR, what)
                        .Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, problem_.type)
                        .Set(CUDNN_ATTR_TENSOR_DIMENSIONS, side.dims)
                        .Set(CUDNN_ATTR_TENSOR_STRIDES, side.strides)
                        .Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id)
                        .Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{problem_.alignment})
                        .Finalize());
    return tensors_.size() - 1;
  }

  absl::StatusOr<size_t> AddWindow() {
    const auto spatial_dims = static_cast<int64_t>(problem_.stride.size());
    RETURN_IF_ERROR(tensors_.emplace_back(cudnn_->api(), CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "the window")
                        .Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, problem_.compute)
                        .Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
                        .Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, spatial_dims)
                        .Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, problem_.padding_low)
                        .Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, problem_.padding_high)
                        .Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, problem_.stride)
                        .Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, problem_.dilation)
                        .Finalize());
    return tensors_.size() - 1;
  }

  const ConvolutionProblem problem_;
  const std::shared_ptr<CudnnHandle> cudnn_;  // shared by all kernels of the program
  std::vector<CudnnDescriptor> tensors_;      // then the window and the operation; the plan refers to them
  CudnnPlan plan_;
};

bool HasElements(const Node& node) {
  bool has_elements = node.type().num_elements() > 0;
  for (const Value& operand : node.operands()) has_elements = has_elements && operand.type().num_elements() > 0;
  return has_elements;
}

// Returns a body whose result is the sum of nothing.
absl::StatusOr<Graph> ZeroBody(const Node& node) {
  Graph body("zeros");
  for (const Value& operand : node.operands()) {
    RETURN_IF_ERROR(body.AddInput("x" + std::to_string(body.inputs().size()), operand.type()).status());
  }
  Builder builder(body, nullptr, node.source());
  const Value result = builder.Splat(0, node.type());
  RETURN_IF_ERROR(builder.status());
  RETURN_IF_ERROR(body.AddResult("y", result));
  return body;
}

// Returns dw[K,C] = dy' x of dy[N H W,K] and x[N H W,C]. The library's operands are x', whose columns are the points,
// and dy'.
MatMulProblem ProductOf(const ConvolutionProblem& problem, DType dtype, uint32_t alignment) {
  const int64_t channels = problem.x.dims[1], filters = problem.y.dims[1];
  const int64_t points = Shape(problem.x.dims).num_elements() / channels;
  MatMulProblem product;
  product.first = {.rows = channels, .columns = points, .transpose = false};
  product.second = {.rows = filters, .columns = points, .transpose = true};
  product.result = {.rows = channels, .columns = filters, .transpose = false};
  product.type = dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
  product.alignment = std::max(alignment, static_cast<uint32_t>(SizeOf(dtype)));
  return product;
}

// The filter has one tap, which meets each point of x once.
bool IsPointwise(const Node& node) {
  using Ints = std::vector<int64_t>;
  const auto all = [&](const char* attribute, int64_t value) {
    const Ints& values = node.attr<Ints>(attribute);
    return std::count(values.begin(), values.end(), value) == static_cast<int64_t>(values.size());
  };
  const Ints& filter = node.attr<Ints>("filter_shape");
  return std::all_of(filter.begin() + 2, filter.end(), [](int64_t extent) { return extent == 1; }) &&
         filter[1] == node.operand(0).shape()[1] && all("stride", 1) && all("padding_low", 0) && all("padding_high", 0);
}

}  // namespace

bool SupportsConvolution(const Node& node) {
  const DType from = node.operand(0).dtype();
  if (!IsFloat(from) || !HasElements(node)) return false;
  return node.type().dtype == from || (SizeOf(from) == 2 && IsPointwise(node));
}

bool RoundsFilterGradient(const Node& node) { return node.Is("convolution_grad_filter"); }

absl::Status EmitConvolution(const Node& node, EmitContext& c) {
  ConvolutionProblem problem(node, c.gpu().tf32, c.alignment());
  if (problem.is_wide_product) {
    const MatMulProblem product = ProductOf(problem, node.operand(0).dtype(), c.alignment());
    std::vector<int> reads = {c.ReadAs(node, node.operand(1), /*channels_last=*/true),
                              c.ReadAs(node, node.operand(0), /*channels_last=*/true)};
    AddProductOf(node, product, std::move(reads), c.WriteAs(EmitContext::ResultOf(node), /*channels_last=*/true), c);
    return absl::OkStatus();
  }
  Kernel kernel;
  kernel.name = "cudnn." + node.op_name();
  kernel.scratch_bytes = problem.WorkspaceLimit();
  if (problem.tf32) kernel.arithmetic = Arithmetic::kTF32;
  const bool channels_last = problem.channels_last;
  auto convolution = std::make_shared<Convolution>(std::move(problem), c.cudnn());
  c.AddConvolution(convolution);
  kernel.run = [convolution](const KernelArgs& args) { return convolution->Run(args); };
  std::vector<int> reads;
  for (const Value& operand : node.operands()) reads.push_back(c.ReadAs(node, operand, channels_last));
  c.Add(node, std::move(kernel), std::move(reads), {c.WriteAs(EmitContext::ResultOf(node), channels_last)});
  return absl::OkStatus();
}

bool SupportsConvolutionLoop(const Node& node) { return IsFloat(node.type().dtype) && !HasElements(node); }

absl::Status EmitConvolutionLoop(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(Graph body, ZeroBody(node));
  return EmitLoopOf(node, std::move(body), c);
}

}  // namespace lockstep::cuda
