// The first k elements in sorted order, and the positions of the largest, with kernels/order.h.

#include "backends/cuda/kernels/order.h"

#include "backends/cuda/emitters.h"

namespace lockstep::cuda {
namespace {

// x seen as [outer, extent, inner]; a line is along `extent`.
struct Lines {
  int64_t outer = 1, extent = 1, inner = 1;

  Lines(const Shape& shape, int64_t dim) : extent(shape[dim]) {
    for (int64_t i = 0; i < dim; ++i) outer *= shape[i];
    for (int64_t i = dim + 1; i < shape.rank(); ++i) inner *= shape[i];
  }
};

Lines LinesOf(const Node& node) { return {node.operand(0).shape(), node.attr<int64_t>("dim")}; }

}  // namespace

// Positions are stored in 32 bits.
bool SupportsOrder(const Node& node) { return LinesOf(node).extent < (int64_t{1} << 31); }

absl::Status EmitTopK(const Node& node, EmitContext& c) {
  const DType dtype = node.type().dtype;
  const Lines lines = LinesOf(node);
  const bool largest = node.attr<bool>("largest");
  LineSort sort(c.ImageOf("order"), lines.outer * lines.inner, lines.extent);
  TopKArgs given{};
  given.outer = lines.outer, given.extent = lines.extent, given.inner = lines.inner;
  given.padded = sort.padded(), given.k = node.attr<int64_t>("k"), given.largest = largest ? 1 : 0;
  Kernel kernel;
  kernel.name = "cuda.top_k";
  kernel.scratch_bytes = sort.scratch_bytes();
  kernel.run = [sort, given, keys = c.KernelOf("order", NameFor("top_k_keys", dtype)),
                take = c.KernelOf("order", NameFor("top_k_take", SizeOf(dtype)))](const KernelArgs& args) mutable {
    CudaStream& stream = StreamOf(args);
    given.x = args.reads[0];
    given.keys = sort.KeysIn(args.scratch);
    given.numbers = sort.NumbersIn(args.scratch);
    given.values = args.writes[0];
    given.indices = args.write<int64_t>(1);
    RETURN_IF_ERROR(keys.Run(stream, sort.total(), given));
    RETURN_IF_ERROR(sort.Run(stream, args.scratch));
    return take.Run(stream, given.outer * given.k * given.inner, given);
  };
  const int values = c.Write(node, 0), indices = c.Write(node, 1);
  c.Add(node, std::move(kernel), c.ReadAll(node), {values, indices});
  return absl::OkStatus();
}

absl::Status EmitArg(const Node& node, EmitContext& c) {
  constexpr int64_t kWarp = 32;
  const Lines lines = LinesOf(node);
  ArgArgs given{};
  given.outer = lines.outer, given.extent = lines.extent, given.inner = lines.inner;
  given.bytes = static_cast<int64_t>(SizeOf(node.type().dtype));
  given.smallest = node.Is("argmin") ? 1 : 0;
  given.last = node.attr<bool>("last") ? 1 : 0;
  Kernel kernel;
  kernel.name = "cuda." + node.op_name();
  kernel.run = [given,
                find = c.KernelOf("order", NameFor("arg", node.operand(0).dtype()))](const KernelArgs& args) mutable {
    given.x = args.reads[0];
    given.y = args.writes[0];
    return find.Run(StreamOf(args), given.outer * given.inner * kWarp, given);
  };
  c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
