// Ops that copy rows of elements of any type, and axis_index.

#include <algorithm>
#include <cstring>

#include "backends/cpu/emitters.h"
#include "backends/planning/inner_collective.h"

namespace lockstep::cpu {
namespace {

using Ints = std::vector<int64_t>;

// Copies a box of x (row-major, with `x_strides` in bytes) to y; the last dimension is copied as one run.
void CopyBox(const Ints& extents, size_t dim, uint64_t run_bytes, const std::byte* x, const Ints& x_strides,
             std::byte* y, const Ints& y_strides) {
  if (dim + 1 >= extents.size()) {
    std::memcpy(y, x, run_bytes);
    return;
  }
  for (int64_t i = 0; i < extents[dim]; ++i) {
    CopyBox(extents, dim + 1, run_bytes, x + i * x_strides[dim], x_strides, y + i * y_strides[dim], y_strides);
  }
}

Ints ByteStrides(const TensorType& type) {
  Ints strides = type.shape.Strides();
  for (int64_t& stride : strides) stride *= static_cast<int64_t>(SizeOf(type.dtype));
  return strides;
}

// Transposes elements [i][j][bytes] to [j][i][bytes].
Kernel SwapOuter(std::string name, int64_t rows, int64_t columns, int64_t bytes) {
  return KernelOf(std::move(name), [=](const KernelArgs& args) {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        std::memcpy(args.writes[0] + (j * rows + i) * bytes, args.reads[0] + (i * columns + j) * bytes,
                    static_cast<size_t>(bytes));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status EmitConcat(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const int64_t dim = node.attr<int64_t>("dim");
  const Runs runs(node.type(), dim);
  std::vector<uint64_t> bytes;  // of a run, for each operand
  for (const Value& operand : node.operands())
    bytes.push_back(static_cast<uint64_t>(operand.shape()[dim] * runs.inner));
  const auto concat = [outer = runs.outer, bytes](const KernelArgs& args) {
    std::byte* to = args.writes[0];
    for (int64_t i = 0; i < outer; ++i) {
      for (size_t x = 0; x < bytes.size(); ++x) {
        if (bytes[x] > 0) std::memcpy(to, args.reads[x] + static_cast<uint64_t>(i) * bytes[x], bytes[x]);
        to += bytes[x];
      }
    }
    return absl::OkStatus();
  };
  c.Add(node, KernelOf("copy.concat", concat), std::move(reads), {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitPad(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const TensorType x = node.operand(0).type(), y = node.type();
  const Ints x_strides = ByteStrides(x), y_strides = ByteStrides(y), low = node.attr<Ints>("low");
  const Tensor fill = Tensor::Scalar(y.dtype, node.attr<double>("value"));
  uint64_t first = 0;
  for (size_t i = 0; i < low.size(); ++i) first += static_cast<uint64_t>(low[i] * y_strides[i]);
  const uint64_t element = SizeOf(y.dtype), total = y.num_bytes();
  const uint64_t run = x.shape.rank() == 0 ? element : static_cast<uint64_t>(x.shape[x.shape.rank() - 1]) * element;
  const bool empty = x.num_elements() == 0;
  c.Add(node,
        KernelOf("copy.pad",
                 [=, extents = x.shape.dims()](const KernelArgs& args) {
                   for (uint64_t at = 0; at < total; at += element)
                     std::memcpy(args.writes[0] + at, fill.bytes(), element);
                   if (!empty) CopyBox(extents, 0, run, args.reads[0], x_strides, args.writes[0] + first, y_strides);
                   return absl::OkStatus();
                 }),
        std::move(reads), {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitShard(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const Runs runs(node.operand(0).type(), node.attr<int64_t>("dim"));
  const uint64_t whole = static_cast<uint64_t>(node.operand(0).shape()[node.attr<int64_t>("dim")] * runs.inner);
  const uint64_t slice = static_cast<uint64_t>(node.type().shape[node.attr<int64_t>("dim")] * runs.inner);
  const int64_t outer = runs.outer;
  Kernel kernel = KernelOf("copy.shard", [=](const KernelArgs& args) {
    const std::byte* from = args.reads[0] + static_cast<uint64_t>(args.coordinate) * slice;
    for (int64_t i = 0; i < outer; ++i) {
      std::memcpy(args.writes[0] + static_cast<uint64_t>(i) * slice, from + static_cast<uint64_t>(i) * whole, slice);
    }
    return absl::OkStatus();
  });
  kernel.mesh_axis = c.builder().MeshAxisOf(node);
  c.Add(node, std::move(kernel), std::move(reads), {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitAxisIndex(const Node& node, EmitContext& c) {
  const DType dtype = node.type().dtype;
  Kernel kernel = KernelOf("axis_index", [dtype](const KernelArgs& args) {
    DispatchDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      *args.write<T>(0) = ConvertElement<T>(static_cast<int64_t>(args.coordinate));
    });
    return absl::OkStatus();
  });
  kernel.mesh_axis = c.builder().MeshAxisOf(node);
  c.Add(node, std::move(kernel), {}, {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitInnerCollective(const Node& node, EmitContext& c) {
  return EmitCollectiveOfSlices(node, c, [&](int64_t rows, int64_t columns, int64_t bytes) {
    return SwapOuter("copy." + std::string(node.op_name()), rows, columns, bytes);
  });
}

}  // namespace lockstep::cpu
