// Matrix products: with cuBLASLt for floats, with loops for integers and for empty tensors.

#include "core/ops/matmul.h"

#include <memory>

#include "backends/cuda/emitters.h"
#include "backends/cuda/matmul_problem.h"
#include "backends/cuda/product.h"
#include "core/builder.h"

namespace lockstep::cuda {
namespace {

// NVIDIA's recommended workspace size; the library would not use more.
uint64_t WorkspaceBytes(const GpuDescription& gpu) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  return (gpu.capability >= 90 ? 32 : 4) * kMiB;
}

// Returns y[b, i, j] = sum over l of a[b, i, l] b[b, l, j], as a sum over a product of broadcasts.
absl::StatusOr<Graph> ProductBody(const Node& node) {
  const ops::MatMulForm form(node);
  const int64_t rank = form.y.rank();
  int64_t batch = 1;
  for (int64_t i = 0; i + 2 < rank; ++i) batch *= form.y[i];
  const int64_t m = form.y[rank - 2], n = form.y[rank - 1], k = form.a[form.contracted_a];
  Graph body("matmul");
  ASSIGN_OR_RETURN(const Value a, body.AddInput("a", node.operand(0).type()));
  ASSIGN_OR_RETURN(const Value b, body.AddInput("b", node.operand(1).type()));
  Builder builder(body, nullptr, node.source());
  // [batch, rows or columns, k]
  const auto rows_of = [&](Value value, int64_t extent, bool inner_is_first) {
    if (!inner_is_first) return builder.Reshape(value, Shape({batch, extent, k}));
    return builder.Transpose(builder.Reshape(value, Shape({batch, k, extent})), {0, 2, 1});
  };
  const Shape points({batch, m, n, k});
  const Value left = builder.Broadcast(rows_of(a, m, form.transpose_a), points, {0, 1, 3});
  const Value right = builder.Broadcast(rows_of(b, n, !form.transpose_b), points, {0, 2, 3});
  const Value sum = builder.ReduceSum(builder.Mul(left, right), {3});
  const Value result = builder.Reshape(sum, node.type().shape);
  RETURN_IF_ERROR(builder.status());
  RETURN_IF_ERROR(body.AddResult("y", result));
  return body;
}

}  // namespace

void AddProductOf(const Node& node, const MatMulProblem& problem, std::vector<int> reads, int write, EmitContext& c) {
  Kernel kernel;
  kernel.name = "cublaslt." + node.op_name();
  if (problem.has_bias()) kernel.name += "+bias";
  if (problem.has_relu()) kernel.name += "+relu";
  kernel.scratch_bytes = WorkspaceBytes(c.gpu());
  if (problem.compute == CUBLAS_COMPUTE_32F_FAST_TF32) kernel.arithmetic = Arithmetic::kTF32;
  const std::shared_ptr<Product> run = c.AddProduct(problem, kernel.scratch_bytes);
  kernel.run = [run, has_bias = problem.has_bias()](const KernelArgs& args) {
    return run->Run(StreamOf(args), {.first = args.reads[1],
                                     .second = args.reads[0],
                                     .bias = has_bias ? args.reads[2] : nullptr,
                                     .result = args.writes[0],
                                     .workspace = args.scratch});
  };
  c.Add(node, std::move(kernel), std::move(reads), {write});
}

bool SupportsMatMul(const Node& node) {
  bool has_elements = node.type().num_elements() > 0;
  for (const Value& operand : node.operands()) has_elements = has_elements && operand.type().num_elements() > 0;
  const DType from = node.operand(0).dtype(), to = node.type().dtype;
  return has_elements && IsFloat(from) && (to == from || (SizeOf(from) == 2 && to == DType::kF32));
}

absl::Status EmitMatMul(const Node& node, EmitContext& c) {
  AddProductOf(node, MatMulProblem(node, c.gpu().tf32, c.alignment()), c.ReadAll(node), c.Write(node), c);
  return absl::OkStatus();
}

absl::Status EmitMatMulWithEpilogue(const Node& fusion, const MatMulEpilogue& epilogue, EmitContext& c) {
  MatMulProblem problem(*epilogue.product, c.gpu().tf32, c.alignment());
  problem.epilogue = epilogue.epilogue;
  std::vector<int> reads = c.ReadAll(*epilogue.product);
  if (epilogue.bias >= 0) reads.push_back(c.Read(fusion, static_cast<size_t>(epilogue.bias)));
  AddProductOf(*epilogue.product, problem, std::move(reads), c.Write(fusion), c);
  return absl::OkStatus();
}

bool SupportsMatMulLoop(const Node& node) {
  if (node.type().dtype != node.operand(0).dtype()) return false;
  const absl::StatusOr<Graph> body = ProductBody(node);
  return body.ok() && AnalyzeGrid(*body).ok();
}

absl::Status EmitMatMulLoop(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(Graph body, ProductBody(node));
  return EmitLoopOf(node, std::move(body), c);
}

}  // namespace lockstep::cuda
