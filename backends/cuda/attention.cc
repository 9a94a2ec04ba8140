// Attention and its gradients for q, k and v, without the scores of all queries and keys, with
// kernels/attention_kernels.h. A mask's gradient, which has their size, is decomposed.

#include "core/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "backends/cuda/emitters.h"
#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/block.h"

namespace lockstep::cuda {
namespace {

const Shape* MaskOf(const Node& node) {
  const size_t mask = (node.Is("attention") ? ops::kForwardOperands : ops::kGradOperands).mask;
  return node.operands().size() > mask ? &node.operand(mask).shape() : nullptr;
}

ops::AttentionDims DimsOf(const Node& node) {
  return {node.attributes(), node.operand(0).shape(), node.operand(1).shape(), node.operand(2).shape(), MaskOf(node)};
}

int64_t HeadsOfBatch(const Shape& shape) {
  return shape.rank() > 2 ? std::max<int64_t>(shape[shape.rank() - 3], 1) : 1;
}

// The rows of a row-major tensor.
AttentionRows RowsOf(const Shape& shape) {
  const int64_t heads = HeadsOfBatch(shape), row = shape.dims().back(), head = row * shape[shape.rank() - 2];
  return {.heads = heads, .batch = heads * head, .head = head, .row = row};
}

// The rows of the mask, of which some heads of q, [batches, heads], may share parts.
AttentionRows MaskRowsOf(const ops::AttentionDims& dims, int64_t heads) {
  const auto offset = [&](int64_t head) {
    return head < std::ssize(dims.mask_offsets) ? dims.mask_offsets[static_cast<size_t>(head)] : 0;
  };
  return {.heads = heads, .batch = offset(heads), .head = heads > 1 ? offset(1) : 0, .row = dims.mask_row};
}

bool IsRegular(const ops::AttentionDims& dims, const AttentionRows& mask) {
  for (int64_t head = 0; head < std::ssize(dims.mask_offsets); ++head) {
    const int64_t expected = head / mask.heads * mask.batch + head % mask.heads * mask.head;
    if (dims.mask_offsets[static_cast<size_t>(head)] != expected) return false;
  }
  return true;
}

// The sizes of keys and values for which there are kernels.
constexpr int64_t kSizes[] = {64, 128};

AttentionArgs ArgsOf(const Node& node) {
  const ops::AttentionDims dims = DimsOf(node);
  const Shape &q = node.operand(0).shape(), &k = node.operand(1).shape(), &v = node.operand(2).shape();
  AttentionArgs args{};
  args.q_rows = args.dq_rows = RowsOf(q);
  args.k_rows = args.dk_rows = RowsOf(k);
  args.v_rows = args.dv_rows = RowsOf(v);
  args.y_rows = args.dy_rows = RowsOf(q.WithDim(q.rank() - 1, dims.value_size));
  args.mask_rows = MaskRowsOf(dims, HeadsOfBatch(q));
  args.mask_is_bool = MaskOf(node) != nullptr && node.operands().back().dtype() == DType::kBool ? 1 : 0;
  args.heads = dims.heads;
  args.group = static_cast<int32_t>(dims.group);
  args.queries = static_cast<int32_t>(dims.queries);
  args.keys = static_cast<int32_t>(dims.keys);
  args.past = static_cast<int32_t>(std::clamp(dims.past, -dims.queries, dims.keys));
  args.size = static_cast<int32_t>(dims.size);
  args.value_size = static_cast<int32_t>(dims.value_size);
  args.scale = static_cast<float>(dims.scale);
  args.softcap = static_cast<float>(dims.softcap);
  args.causal = dims.causal ? 1 : 0;
  return args;
}

DeviceKernel KernelOf(const Node& node, const std::string& kernel, EmitContext& c) {
  const std::string dtype(DTypeName(node.operand(0).dtype()));
  const ops::AttentionDims dims = DimsOf(node);
  const int64_t size = *std::lower_bound(std::begin(kSizes), std::end(kSizes), std::max(dims.size, dims.value_size));
  return c.KernelOf("attention_" + dtype, kernel + "_" + dtype + "_" + std::to_string(size));
}

// The threads of the blocks for all rows of these heads.
int64_t ThreadsFor(int64_t heads, int64_t rows) {
  return heads * ((rows + kAttentionRows - 1) / kAttentionRows) * kBlock;
}

}  // namespace

// Rows are whole multiples of 16 bytes, so they begin at such addresses, also in a scan, whose slices are adjacent.
bool SupportsAttention(const Node& node) {
  constexpr int64_t kMostRows = int64_t{1} << 30;  // positions are computed in 32 bits
  const DType dtype = node.operand(0).dtype();
  const ops::AttentionDims dims = DimsOf(node);
  const auto fits = [&](int64_t size) {
    return size <= std::end(kSizes)[-1] && size * static_cast<int64_t>(SizeOf(dtype)) % 16 == 0;
  };
  return dtype != DType::kF64 && fits(dims.size) && fits(dims.value_size) && dims.queries <= kMostRows &&
         dims.keys <= kMostRows && IsRegular(dims, MaskRowsOf(dims, HeadsOfBatch(node.operand(0).shape())));
}

bool NeedsTf32(const Node& node) {
  return (node.Is("attention") || node.Is("attention_grad")) && node.operand(0).dtype() == DType::kF32;
}

absl::Status EmitAttention(const Node& node, EmitContext& c) {
  Kernel kernel;
  kernel.name = "cuda.attention";
  kernel.arithmetic = NeedsTf32(node) ? Arithmetic::kTF32 : Arithmetic::k16Bits;
  kernel.run = [given = ArgsOf(node), has_mask = MaskOf(node) != nullptr,
                attention = KernelOf(node, "attention", c)](const KernelArgs& args) mutable {
    given.q = args.reads[0], given.k = args.reads[1], given.v = args.reads[2];
    given.mask = has_mask ? args.reads[ops::kForwardOperands.mask] : nullptr;
    given.y = args.writes[0];
    given.log_sum_exp = args.write<float>(1);
    return attention.Run(StreamOf(args), ThreadsFor(given.heads, given.queries), given);
  };
  const int y = c.Write(node, 0), log_sum_exp = c.Write(node, 1);
  c.Add(node, std::move(kernel), c.ReadAll(node), {y, log_sum_exp});
  return absl::OkStatus();
}

absl::Status EmitAttentionGrad(const Node& node, EmitContext& c) {
  Kernel kernel;
  kernel.name = "cuda.attention_grad";
  kernel.arithmetic = NeedsTf32(node) ? Arithmetic::kTF32 : Arithmetic::k16Bits;
  kernel.run = [given = ArgsOf(node), has_mask = MaskOf(node) != nullptr, key_heads = DimsOf(node).key_heads(),
                of_queries = KernelOf(node, "attention_grad_q", c),
                of_keys = KernelOf(node, "attention_grad_kv", c)](const KernelArgs& args) mutable {
    constexpr ops::AttentionOperands kOperands = ops::kGradOperands;
    CudaStream& stream = StreamOf(args);
    given.q = args.reads[0], given.k = args.reads[1], given.v = args.reads[2];
    given.mask = has_mask ? args.reads[kOperands.mask] : nullptr;
    given.log_sum_exp = const_cast<float*>(args.read<float>(kOperands.log_sum_exp));
    given.dy = args.reads[kOperands.dy];
    given.delta = args.read<float>(kOperands.delta);
    given.dq = args.writes[0], given.dk = args.writes[1], given.dv = args.writes[2];
    RETURN_IF_ERROR(of_queries.Run(stream, ThreadsFor(given.heads, given.queries), given));
    return of_keys.Run(stream, ThreadsFor(key_heads, given.keys), given);
  };
  std::vector<int> writes;
  for (size_t i = 0; i < node.num_results(); ++i) writes.push_back(c.Write(node, i));
  c.Add(node, std::move(kernel), c.ReadAll(node), std::move(writes));
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
