// Cumulative sums and products, with kernels/cumulative.h.

#include "backends/cuda/kernels/cumulative.h"

#include "backends/cuda/emitters.h"
#include "backends/cuda/kernels/block.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kManyLines = 16384;  // enough lines for one thread each
constexpr int64_t kShortLine = 512;    // a line this short is not worth a block

}  // namespace

absl::Status EmitCumulative(const Node& node, EmitContext& c) {
  const Shape& shape = node.type().shape;
  const int64_t dim = node.attr<int64_t>("dim");
  CumulativeArgs given{};
  given.outer = given.inner = 1;
  given.extent = shape[dim];
  for (int64_t i = 0; i < dim; ++i) given.outer *= shape[i];
  for (int64_t i = dim + 1; i < shape.rank(); ++i) given.inner *= shape[i];
  given.exclusive = node.attr<bool>("exclusive") ? 1 : 0;
  given.reverse = node.attr<bool>("reverse") ? 1 : 0;
  given.multiplies = node.Is("cumulative_prod") ? 1 : 0;
  const int64_t lines = given.extent == 0 ? 0 : given.outer * given.inner;
  const bool by_blocks = lines < kManyLines && given.extent > kShortLine;
  Kernel kernel;
  kernel.name = "cuda." + node.op_name();
  kernel.run = [given, threads = by_blocks ? lines * kBlock : lines,
                sum = c.KernelOf("cumulative", NameFor(by_blocks ? "cumulative_block" : "cumulative",
                                                       node.type().dtype))](const KernelArgs& args) mutable {
    given.x = args.reads[0];
    given.y = args.writes[0];
    return sum.Run(StreamOf(args), threads, given);
  };
  c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
