// Attention and its gradients for q, k and v, without the scores of all queries and keys, with
// kernels/attention_kernels.h. A mask's gradient, which has their size, is decomposed.

#include "core/ops/attention.h"

#include <algorithm>
#include <string>

#include "backends/cuda/attention_views.h"
#include "backends/cuda/emitters.h"
#include "backends/cuda/kernels/attention.h"

namespace lockstep::cuda {
namespace {

const Shape* MaskOf(const Node& node) {
  const size_t mask = (node.Is("attention") ? ops::kForwardOperands : ops::kGradOperands).mask;
  return node.operands().size() > mask ? &node.operand(mask).shape() : nullptr;
}

ops::AttentionDims DimsOf(const Node& node) {
  return {node.attributes(), node.operand(0).shape(), node.operand(1).shape(), node.operand(2).shape(), MaskOf(node)};
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

// The arguments without the rows and addresses of operands and results.
AttentionArgs ArgsOf(const Node& node) {
  const ops::AttentionDims dims = DimsOf(node);
  AttentionArgs args{};
  args.mask_rows = MaskRowsOf(dims, RowsOf(node.operand(0).shape()).heads);
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

// Where the rows of operands and results begin: at an offset in bytes of a storage that an instruction reads or writes.
struct Place {
  size_t position;
  uint64_t bytes;

  std::byte* In(std::byte* const* storages) const { return storages[position] + bytes; }
};

uint64_t BytesBefore(const AttentionView& view) {
  return static_cast<uint64_t>(view.offset) * SizeOf(view.base.dtype());
}

// Adds the storage of an operand to `reads`, sets its rows, and returns its place.
Place ReadRows(const Node& node, size_t i, EmitContext& c, std::vector<int>& reads, AttentionRows& rows) {
  const AttentionView view = c.attention_views().OfOperand(node, i);
  rows = view.rows;
  reads.push_back(c.ReadAs(node, view.base, /*channels_last=*/false));
  return {reads.size() - 1, BytesBefore(view)};
}

// The results of one node in memory. Several may be parts of one value.
class WrittenRows {
 public:
  explicit WrittenRows(const Node& node) : node_(node) {}

  Place Add(size_t i, EmitContext& c, AttentionRows& rows) {
    const AttentionView view = c.attention_views().OfResult(node_, i);
    rows = view.rows;
    const auto found = std::find(values_.begin(), values_.end(), view.base);
    const auto position = static_cast<size_t>(found - values_.begin());
    if (found == values_.end()) {
      values_.push_back(view.base);
      storages.push_back(c.builder().Define(view.base));
    }
    return {position, BytesBefore(view)};
  }

  std::vector<int> storages;

 private:
  const Node& node_;
  std::vector<Value> values_;
};

// A kernel with its blocks.
class AttentionLaunch {
 public:
  AttentionLaunch(const Node& node, AttentionKernel kernel, EmitContext& c) {
    constexpr const char* kNames[] = {"attention_", "attention_grad_q_", "attention_grad_kv_"};
    const DType type = node.operand(0).dtype();
    const std::string dtype(DTypeName(type));
    const ops::AttentionDims dims = DimsOf(node);
    const int64_t size = *std::lower_bound(std::begin(kSizes), std::end(kSizes), std::max(dims.size, dims.value_size));
    kernel_ = c.KernelOf("attention_" + dtype, kNames[static_cast<int>(kernel)] + dtype + "_" + std::to_string(size));
    block_ = AttentionBlockOf(kernel, static_cast<int64_t>(SizeOf(type)), size);
  }

  // Runs blocks for all rows of these heads.
  absl::Status Run(CudaStream& stream, int64_t heads, int64_t rows, const AttentionArgs& args) {
    const int64_t blocks = heads * ((rows + block_.rows() - 1) / block_.rows());
    return kernel_.Run(stream, blocks * block_.threads, args, block_.threads);
  }

 private:
  DeviceKernel kernel_;
  AttentionBlock block_{};
};

}  // namespace

// Rows are whole multiples of 16 bytes, so they begin at such addresses, also in a scan, whose slices are adjacent.
bool SupportsAttention(const Node& node) {
  constexpr int64_t kMostRows = int64_t{1} << 29;  // sums of positions are computed in 32 bits
  const DType dtype = node.operand(0).dtype();
  const ops::AttentionDims dims = DimsOf(node);
  const auto fits = [&](int64_t size) {
    return size <= std::end(kSizes)[-1] && size * static_cast<int64_t>(SizeOf(dtype)) % 16 == 0;
  };
  return dtype != DType::kF64 && fits(dims.size) && fits(dims.value_size) && dims.queries <= kMostRows &&
         dims.keys <= kMostRows && IsRegular(dims, MaskRowsOf(dims, RowsOf(node.operand(0).shape()).heads));
}

bool NeedsTf32(const Node& node) {
  return (node.Is("attention") || node.Is("attention_grad")) && node.operand(0).dtype() == DType::kF32;
}

absl::Status EmitAttention(const Node& node, EmitContext& c) {
  AttentionArgs given = ArgsOf(node);
  std::vector<int> reads;
  const Place q = ReadRows(node, 0, c, reads, given.q_rows), k = ReadRows(node, 1, c, reads, given.k_rows),
              v = ReadRows(node, 2, c, reads, given.v_rows);
  const bool has_mask = MaskOf(node) != nullptr;
  if (has_mask) reads.push_back(c.Read(node, ops::kForwardOperands.mask));
  WrittenRows written(node);
  const Place y = written.Add(0, c, given.y_rows);
  const size_t log_sum_exp = written.storages.size();
  written.storages.push_back(c.Write(node, 1));
  Kernel kernel;
  kernel.name = "cuda.attention";
  kernel.arithmetic = NeedsTf32(node) ? Arithmetic::kTF32 : Arithmetic::k16Bits;
  kernel.run = [=, attention = AttentionLaunch(node, AttentionKernel::kForward, c)](const KernelArgs& args) mutable {
    given.q = q.In(args.reads), given.k = k.In(args.reads), given.v = v.In(args.reads);
    given.mask = has_mask ? args.reads[ops::kForwardOperands.mask] : nullptr;
    given.y = y.In(args.writes);
    given.log_sum_exp = args.write<float>(log_sum_exp);
    return attention.Run(StreamOf(args), given.heads, given.queries, given);
  };
  c.Add(node, std::move(kernel), std::move(reads), std::move(written.storages));
  return absl::OkStatus();
}

absl::Status EmitAttentionGrad(const Node& node, EmitContext& c) {
  constexpr ops::AttentionOperands kOperands = ops::kGradOperands;
  AttentionArgs given = ArgsOf(node);
  std::vector<int> reads;
  const Place q = ReadRows(node, 0, c, reads, given.q_rows), k = ReadRows(node, 1, c, reads, given.k_rows),
              v = ReadRows(node, 2, c, reads, given.v_rows);
  reads.push_back(c.Read(node, kOperands.log_sum_exp));
  const Place dy = ReadRows(node, kOperands.dy, c, reads, given.dy_rows);
  reads.push_back(c.Read(node, kOperands.delta));
  const bool has_mask = MaskOf(node) != nullptr;
  if (has_mask) reads.push_back(c.Read(node, kOperands.mask));
  WrittenRows written(node);
  const Place dq = written.Add(0, c, given.dq_rows), dk = written.Add(1, c, given.dk_rows),
              dv = written.Add(2, c, given.dv_rows);
  Kernel kernel;
  kernel.name = "cuda.attention_grad";
  kernel.arithmetic = NeedsTf32(node) ? Arithmetic::kTF32 : Arithmetic::k16Bits;
  kernel.run = [=, key_heads = DimsOf(node).key_heads(), of_queries = AttentionLaunch(node, AttentionKernel::kGradQ, c),
                of_keys = AttentionLaunch(node, AttentionKernel::kGradKV, c)](const KernelArgs& args) mutable {
    CudaStream& stream = StreamOf(args);
    given.q = q.In(args.reads), given.k = k.In(args.reads), given.v = v.In(args.reads);
    given.mask = has_mask ? args.reads[kOperands.mask] : nullptr;
    given.log_sum_exp = const_cast<float*>(args.read<float>(kOperands.log_sum_exp));
    given.dy = dy.In(args.reads);
    given.delta = args.read<float>(kOperands.delta);
    given.dq = dq.In(args.writes), given.dk = dk.In(args.writes), given.dv = dv.In(args.writes);
    RETURN_IF_ERROR(of_queries.Run(stream, given.heads, given.queries, given));
    return of_keys.Run(stream, key_heads, given.keys, given);
  };
  c.Add(node, std::move(kernel), std::move(reads), std::move(written.storages));
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
