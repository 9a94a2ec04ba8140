// Gather and the scatters, with the kernels of kernels/indexing.h. Scatters sort their indices first.

#include "core/ops/indexing.h"

#include "backends/cuda/emitters.h"
#include "backends/cuda/kernels/indexing.h"

namespace lockstep::cuda {
namespace {

// The indices that a node reads, and the error for one out of range.
class Indices {
 public:
  Indices(const Node& node, const Shape& x, Value indices, const char* constraint)
      : rows_(x, indices.shape(), node.attr<int64_t>("dim"), node.attr<int64_t>("batch_dims")),
        wide_(indices.dtype() == DType::kI64) {
    const std::string extent = std::to_string(rows_.extent);
    message_ = node.op_name() + " (" + constraint + "): an index is outside [-" + extent + ", " + extent +
               "), the extent of dimension " + std::to_string(node.attr<int64_t>("dim"));
    if (!node.source().empty()) message_ += ", at " + node.source();
  }

  const ops::IndexedRows& rows() const { return rows_; }
  bool wide() const { return wide_; }
  // Returns the rows, counted in units of `inner` per row instead of elements.
  Rows RowsOf(int64_t inner) const { return {rows_.groups(), rows_.outer, rows_.extent, rows_.count, inner}; }
  uint32_t ErrorId(CudaStream& stream) {
    if (error_id_ == 0) error_id_ = stream.RegisterErrors({message_});
    return error_id_;
  }

 private:
  ops::IndexedRows rows_;
  bool wide_;
  std::string message_;
  uint32_t error_id_ = 0;
};

uint64_t* ErrorWord(CudaStream& stream) { return reinterpret_cast<uint64_t*>(stream.error_word()); }

constexpr int64_t kPackBytes = 16;

// Returns the size in bytes of the largest unit that divides a row.
int64_t UnitOfRows(const Indices& indices, DType dtype) {
  int64_t unit = kPackBytes;
  while (indices.rows().inner * static_cast<int64_t>(SizeOf(dtype)) % unit != 0) unit /= 2;
  return unit;
}

// True if 32-bit numbers can count the indices of a batch.
bool CanBeSorted(Value indices) { return indices.type().num_elements() < (int64_t{1} << 31); }

// The indices, sorted in scratch memory by the row that they point to.
class SortedIndices {
 public:
  SortedIndices(EmitContext& c, Indices indices)
      : indices_(std::move(indices)),
        keys_(c.KernelOf("indexing", "scatter_keys")),
        sort_(c.ImageOf("order"), indices_.rows().batch, indices_.rows().count),
        begins_(c.KernelOf("indexing", "scatter_begins")) {}

  const Indices& indices() const { return indices_; }
  const LineSort& sort() const { return sort_; }

  absl::Status Run(const KernelArgs& args, const std::byte* indices) {
    CudaStream& stream = StreamOf(args);
    const ScatterKeysArgs given{indices,           sort_.KeysIn(args.scratch), sort_.NumbersIn(args.scratch),
                                ErrorWord(stream), indices_.rows().batch,      indices_.rows().count,
                                sort_.padded(),    indices_.rows().extent,     indices_.ErrorId(stream),
                                indices_.wide()};
    RETURN_IF_ERROR(keys_.Run(stream, sort_.total(), given));
    RETURN_IF_ERROR(sort_.Run(stream, args.scratch));
    if (!has_begins()) return absl::OkStatus();
    const ScatterBeginsArgs of_rows{sort_.KeysIn(args.scratch), BeginsIn(args.scratch), indices_.rows().batch,
                                    indices_.rows().count,      sort_.padded(),         indices_.rows().extent};
    return begins_.Run(stream, num_begins(), of_rows);
  }

  uint64_t scratch_bytes() const {
    return sort_.scratch_bytes() + (has_begins() ? static_cast<uint64_t>(num_begins()) * sizeof(uint32_t) : 0);
  }
  // Null if the elements of a row are so few that each searches for its updates itself.
  uint32_t* BeginsIn(std::byte* scratch) const {
    return has_begins() ? reinterpret_cast<uint32_t*>(scratch + sort_.scratch_bytes()) : nullptr;
  }

 private:
  bool has_begins() const {
    constexpr int64_t kFewElements = 4;
    const ops::IndexedRows& rows = indices_.rows();
    return rows.outer * rows.inner > kFewElements;
  }
  int64_t num_begins() const { return indices_.rows().batch * (indices_.rows().extent + 1); }

  Indices indices_;
  DeviceKernel keys_;
  LineSort sort_;
  DeviceKernel begins_;
};

// Adds the kernel of a scatter, which combines the updates with x, or with 0 if there is no x. `reads` are x, if there
// is one, the indices and the updates.
Instruction& AddScatter(const Node& node, EmitContext& c, Indices indices, ScatterKind kind, bool has_x) {
  const DType dtype = node.type().dtype;
  int64_t unit = UnitOfRows(indices, dtype);
  std::string name = NameFor("replace", static_cast<uint64_t>(unit));
  const bool is_packed = kind != ScatterKind::kReplace && unit == kPackBytes;
  if (kind != ScatterKind::kReplace) {
    if (!is_packed) unit = static_cast<int64_t>(SizeOf(dtype));
    name = NameFor("scatter", dtype);
  }
  const Rows rows = indices.RowsOf(indices.rows().inner * static_cast<int64_t>(SizeOf(dtype)) / unit);
  SortedIndices sorted(c, std::move(indices));
  Kernel kernel;
  kernel.name = "cuda." + node.op_name();
  kernel.scratch_bytes = sorted.scratch_bytes();
  kernel.run = [sorted, rows, kind, has_x, is_packed,
                combine = c.KernelOf("indexing", name)](const KernelArgs& args) mutable {
    RETURN_IF_ERROR(sorted.Run(args, args.reads[has_x ? 1 : 0]));
    const ScatterArgs given{has_x ? args.reads[0] : nullptr,
                            args.reads[has_x ? 2 : 1],
                            sorted.sort().KeysIn(args.scratch),
                            sorted.sort().NumbersIn(args.scratch),
                            sorted.BeginsIn(args.scratch),
                            args.writes[0],
                            rows,
                            sorted.sort().padded(),
                            kind,
                            is_packed};
    return combine.Run(StreamOf(args), rows.groups * rows.extent * rows.inner, given);
  };
  return c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
}

}  // namespace

absl::Status EmitGather(const Node& node, EmitContext& c) {
  Indices indices(node, node.operand(0).shape(), node.operand(1), "C6");
  const DType dtype = node.type().dtype;
  const int64_t unit = UnitOfRows(indices, dtype);
  const Rows rows = indices.RowsOf(indices.rows().inner * static_cast<int64_t>(SizeOf(dtype)) / unit);
  Kernel kernel;
  kernel.name = "cuda.gather";
  kernel.run = [indices, rows, gather = c.KernelOf("indexing", NameFor("gather", static_cast<uint64_t>(unit)))](
                   const KernelArgs& args) mutable {
    CudaStream& stream = StreamOf(args);
    const GatherArgs given{args.reads[0], args.reads[1],           args.writes[0], ErrorWord(stream),
                           rows,          indices.ErrorId(stream), indices.wide()};
    return gather.Run(stream, rows.groups * rows.count * rows.inner, given);
  };
  c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
  return absl::OkStatus();
}

bool SupportsScatterSum(const Node& node) { return CanBeSorted(node.operand(0)); }

absl::Status EmitScatterSum(const Node& node, EmitContext& c) {
  AddScatter(node, c, Indices(node, node.type().shape, node.operand(0), "C6"), ScatterKind::kSum, /*has_x=*/false);
  return absl::OkStatus();
}

bool SupportsScatter(const Node& node) { return CanBeSorted(node.operand(1)); }

absl::Status EmitScatter(const Node& node, EmitContext& c) {
  const auto& name = node.attr<std::string>("kind");
  const ScatterKind kind = name == "min"    ? ScatterKind::kMin
                           : name == "max"  ? ScatterKind::kMax
                           : name == "prod" ? ScatterKind::kProd
                                            : ScatterKind::kReplace;
  Instruction& instruction =
      AddScatter(node, c, Indices(node, node.type().shape, node.operand(1), "C8"), kind, /*has_x=*/true);
  instruction.may_overwrite.emplace_back(0, 0);
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
