// Adds overlapping windows, with kernels/overlap.h.

#include "backends/cuda/emitters.h"
#include "backends/cuda/kernels/overlap.h"

namespace lockstep::cuda {

using Ints = std::vector<int64_t>;

bool SupportsOverlapAdd(const Node& node) { return node.attr<Ints>("size").size() <= size_t{kOverlapDims}; }

absl::Status EmitOverlapAdd(const Node& node, EmitContext& c) {
  const Ints& size = node.attr<Ints>("size");
  const Ints& dims = node.operand(0).shape().dims();
  const auto first = static_cast<size_t>(node.attr<int64_t>("dim"));
  OverlapArgs given{};
  given.outer = given.inner = 1;
  given.dims = static_cast<int64_t>(size.size());
  for (size_t i = 0; i < first; ++i) given.outer *= dims[i];
  for (size_t i = first + 2 * size.size(); i < dims.size(); ++i) given.inner *= dims[i];
  for (size_t i = 0; i < size.size(); ++i) {
    given.window[i] = dims[first + i];
    given.positions[i] = dims[first + size.size() + i];
    given.size[i] = size[i];
    given.stride[i] = node.attr<Ints>("stride")[i];
    given.dilation[i] = node.attr<Ints>("dilation")[i];
  }
  Kernel kernel;
  kernel.name = "cuda.overlap_add";
  kernel.run = [given, total = node.type().num_elements(),
                add =
                    c.KernelOf("overlap", NameFor("overlap_add", node.type().dtype))](const KernelArgs& args) mutable {
    given.x = args.reads[0];
    given.y = args.writes[0];
    return add.Run(StreamOf(args), total, given);
  };
  c.Add(node, std::move(kernel), c.ReadAll(node), {c.Write(node)});
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
