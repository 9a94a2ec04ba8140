// Max and average pooling and their gradients with oneDNN, in the layout of their operand. Max pooling whose gradient
// is also computed stores the positions of the maxima, so that the gradient does not read x.

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "backends/cpu/emitters.h"
#include "backends/cpu/max_pool_loop.h"

namespace lockstep::cpu {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;
using Ints = std::vector<int64_t>;

struct Pooling {
  dnnl::algorithm algorithm;
  Dims window, stride, padding_low, padding_high, dilation;

  Pooling(const Node& node, dnnl::algorithm max_or_avg) : algorithm(max_or_avg) {
    window = node.attr<Ints>("window");
    stride = node.attr<Ints>("stride");
    padding_low = node.attr<Ints>("padding_low");
    padding_high = node.attr<Ints>("padding_high");
    dilation.assign(window.size(), 0);
    if (node.attributes().contains("dilation")) {
      for (size_t i = 0; i < dilation.size(); ++i) dilation[i] = node.attr<Ints>("dilation")[i] - 1;
    }
  }

  dnnl::pooling_forward::primitive_desc Forward(const dnnl::engine& engine, dnnl::prop_kind kind, const Desc& x,
                                                const Desc& y) const {
    return {engine, kind, algorithm, x, y, stride, window, dilation, padding_low, padding_high, DefaultAttributes()};
  }
  dnnl::pooling_backward::primitive_desc Backward(const dnnl::engine& engine, const Desc& dx, const Desc& dy,
                                                  const dnnl::pooling_forward::primitive_desc& forward) const {
    return {engine,  algorithm,          dx, dy, stride, window, dilation, padding_low, padding_high,
            forward, DefaultAttributes()};
  }
};

dnnl::algorithm AverageOf(const Node& node) {
  return node.attr<bool>("include_padding") ? dnnl::algorithm::pooling_avg_include_padding
                                            : dnnl::algorithm::pooling_avg_exclude_padding;
}

Desc AnyLayout(const TensorType& type) {
  return {type.shape.dims(), *OneDnnType(type.dtype), dnnl::memory::format_tag::any};
}

// Returns the max_pool_grad with the same windows over the same x as this max_pool, or the max_pool of a max_pool_grad.
const Node* Partner(const Node& node, std::string_view op) {
  for (const Node* user : node.operand(0).node->users()) {
    if (user->Is(op) && user->operand(0) == node.operand(0) && user->attributes() == node.attributes()) return user;
  }
  return nullptr;
}

// oneDNN's implementations of max pooling and, for training, of its gradient.
struct MaxPrimitives {
  dnnl::pooling_forward::primitive_desc forward;
  std::optional<dnnl::pooling_backward::primitive_desc> backward;
};

// Max pooling. Runs the loop of max_pool_loop.h if x contains values that oneDNN ignores, and always if oneDNN has
// nothing or only its reference implementation, as for dilated windows, and for 16-bit floats on processors without
// arithmetic in them.
struct MaxPool {
  const Pooling pooling;
  const MaxPoolLoop loop;
  const DType dtype;
  const Desc x, y;

  // x and y are channels-last if x was produced channels-last, else row-major.
  MaxPool(const Node& node, const TensorType& x_type, const TensorType& y_type, bool channels_last)
      : pooling(node, dnnl::algorithm::pooling_max),
        loop(node, channels_last),
        dtype(x_type.dtype),
        x(channels_last ? ChannelsLast(x_type) : RowMajor(x_type)),
        y(channels_last ? ChannelsLast(y_type) : RowMajor(y_type)) {}

  int64_t x_elements() const { return Shape(x.get_dims()).num_elements(); }
};

// The layout of the storage for the gradient: an int32 that is nonzero if the loop has run, and from kTaps on the
// loop's taps or the primitive's workspace.
constexpr uint64_t kTaps = kBufferAlignment;

bool IsReference(const dnnl::primitive_desc_base& pd) {
  return std::string_view(pd.impl_info_str()).starts_with("ref");
}

// Returns nothing if the loop always runs.
absl::StatusOr<std::optional<MaxPrimitives>> PrimitivesOf(const MaxPool& pool, bool train, const EmitContext& c) {
  if (pool.loop.has_empty_window()) return Unimplemented() << "max_pool: the maximum of an empty window is not finite";
  absl::StatusOr<MaxPrimitives> found = CallOneDnn("max_pool", [&] {
    const auto kind = train ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    MaxPrimitives primitives = {pool.pooling.Forward(c.engine(), kind, pool.x, pool.y), std::nullopt};
    if (train) primitives.backward = pool.pooling.Backward(c.engine(), pool.x, pool.y, primitives.forward);
    return primitives;
  });
  if (absl::IsUnimplemented(found.status())) return std::nullopt;
  RETURN_IF_ERROR(found.status());
  if (IsReference(found->forward) || (train && IsReference(*found->backward))) return std::nullopt;
  return *std::move(found);
}

// Adds the kernel that writes y. If `maxima` is a storage, it also writes what the gradient needs.
void AddForward(const Node& node, const MaxPool& pool, const std::optional<MaxPrimitives>& primitives, int x, int y,
                int maxima, EmitContext& c) {
  const bool train = maxima >= 0;
  Kernel kernel;
  kernel.name = "loop.max_pool";
  if (primitives) {
    const dnnl::pooling_forward::primitive_desc& pd = primitives->forward;
    std::vector<PrimitiveArg> args = {{DNNL_ARG_SRC, false, 0, pool.x}, {DNNL_ARG_DST, true, 0, pool.y}};
    if (train) args.push_back({DNNL_ARG_WORKSPACE, true, 1, pd.workspace_desc(), kTaps});
    kernel = PrimitiveKernel("onednn.max_pool", dnnl::pooling_forward(pd), pd.scratchpad_desc(), c.engine(), args);
  }
  kernel.run = [loop = pool.loop, dtype = pool.dtype, count = pool.x_elements(), train, threads = c.threads(),
                primitive = std::move(kernel.run)](const KernelArgs& k) mutable -> absl::Status {
    const bool by_loop = !primitive || HoldsNanOrMinusInfinity(dtype, k.reads[0], count, threads);
    if (train) *k.write<int32_t>(1) = by_loop ? 1 : 0;
    if (!by_loop) return primitive(k);
    loop.Forward(dtype, k.reads[0], k.writes[0], train ? k.writes[1] + kTaps : nullptr, threads);
    return absl::OkStatus();
  };
  std::vector<int> writes = {y};
  if (train) writes.push_back(maxima);
  c.Add(node, std::move(kernel), {x}, std::move(writes));
}

int DefineMaxima(const Node& node, const MaxPool& pool, const std::optional<MaxPrimitives>& primitives,
                 EmitContext& c) {
  const uint64_t workspace = primitives ? primitives->forward.workspace_desc().get_size() : 0;
  const uint64_t bytes = std::max(workspace, pool.loop.taps_bytes());
  return c.builder().DefineTemporary(node.result_name() + ".maxima", DType::kU8, "opaque", kTaps + bytes);
}

}  // namespace

absl::Status EmitMaxPool(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  const bool train = Partner(node, "max_pool_grad") != nullptr;
  const MaxPool pool(node, node.operand(0).type(), node.type(), c.IsChannelsLast(node.operand(0)));
  ASSIGN_OR_RETURN(const auto primitives, PrimitivesOf(pool, train, c));
  ASSIGN_OR_RETURN(const int x, c.ReadAs(node, node.operand(0), pool.x));
  const int y = c.WriteAs(EmitContext::ResultOf(node), pool.y);
  const int maxima = train ? DefineMaxima(node, pool, primitives, c) : -1;
  AddForward(node, pool, primitives, x, y, maxima, c);
  if (train) c.RememberMaxima(&node, maxima, pool.loop.is_channels_last());
  return absl::OkStatus();
}

absl::Status EmitMaxPoolGrad(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  const Value x_value = node.operand(0), dy = node.operand(1);
  const Node* partner = Partner(node, "max_pool");
  const EmitContext::Maxima* remembered = partner != nullptr ? c.FindMaxima(partner) : nullptr;
  const bool channels_last = remembered != nullptr ? remembered->channels_last : c.IsChannelsLast(x_value);
  const MaxPool pool(node, x_value.type(), dy.type(), channels_last);
  ASSIGN_OR_RETURN(const auto primitives, PrimitivesOf(pool, /*train=*/true, c));
  int maxima = remembered != nullptr ? remembered->storage : -1;
  if (maxima < 0) {  // the maxima have not been computed yet
    ASSIGN_OR_RETURN(const int x, c.ReadAs(node, x_value, pool.x));
    const int y =
        c.builder().DefineTemporary(node.result_name() + ".y", dy.dtype(), LayoutName(pool.y), pool.y.get_size());
    maxima = DefineMaxima(node, pool, primitives, c);
    AddForward(node, pool, primitives, x, y, maxima, c);
  }
  ASSIGN_OR_RETURN(const int dy_storage, c.ReadAs(node, dy, pool.y));
  const int dx = c.WriteAs(EmitContext::ResultOf(node), pool.x);
  Kernel kernel;
  kernel.name = "loop.max_pool_grad";
  if (primitives) {
    const dnnl::pooling_backward::primitive_desc& pd = *primitives->backward;
    kernel = PrimitiveKernel("onednn.max_pool_grad", dnnl::pooling_backward(pd), pd.scratchpad_desc(), c.engine(),
                             {{DNNL_ARG_DIFF_DST, false, 0, pool.y},
                              {DNNL_ARG_WORKSPACE, false, 1, primitives->forward.workspace_desc(), kTaps},
                              {DNNL_ARG_DIFF_SRC, true, 0, pool.x}});
  }
  kernel.run = [loop = pool.loop, dtype = pool.dtype, threads = c.threads(),
                primitive = std::move(kernel.run)](const KernelArgs& k) mutable -> absl::Status {
    if (*k.read<int32_t>(1) == 0) return primitive(k);
    loop.Backward(dtype, k.reads[1] + kTaps, k.reads[0], k.writes[0], threads);
    return absl::OkStatus();
  };
  c.Add(node, std::move(kernel), {dy_storage, maxima}, {dx});
  return absl::OkStatus();
}

absl::Status EmitAvgPool(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  const Pooling pooling(node, AverageOf(node));
  const Desc x_desc = c.ProducedDesc(node.operand(0));
  ASSIGN_OR_RETURN(const auto pd, CallOneDnn("avg_pool", [&] {
                     return pooling.Forward(c.engine(), dnnl::prop_kind::forward_inference, x_desc,
                                            AnyLayout(node.type()));
                   }));
  ASSIGN_OR_RETURN(const int x, c.ReadAs(node, node.operand(0), pd.src_desc()));
  const int y = c.WriteAs(EmitContext::ResultOf(node), pd.dst_desc());
  c.Add(node,
        PrimitiveKernel("onednn.avg_pool", dnnl::pooling_forward(pd), pd.scratchpad_desc(), c.engine(),
                        {{DNNL_ARG_SRC, false, 0, pd.src_desc()}, {DNNL_ARG_DST, true, 0, pd.dst_desc()}}),
        {x}, {y});
  return absl::OkStatus();
}

absl::Status EmitAvgPoolGrad(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  const Pooling pooling(node, AverageOf(node));
  const Value dy = node.operand(0);
  // Near convolutions the pool's x is channels-last, whatever the layout of dy.
  const Desc dy_desc = ChannelsLast(dy.type());
  ASSIGN_OR_RETURN(const auto pd, CallOneDnn("avg_pool_grad", [&] {
                     const Desc dx_desc = ChannelsLast(node.type());
                     const auto forward =
                         pooling.Forward(c.engine(), dnnl::prop_kind::forward_training, dx_desc, dy_desc);
                     return pooling.Backward(c.engine(), dx_desc, dy_desc, forward);
                   }));
  ASSIGN_OR_RETURN(const int dy_storage, c.ReadAs(node, dy, pd.diff_dst_desc()));
  const int dx = c.WriteAs(EmitContext::ResultOf(node), pd.diff_src_desc());
  c.Add(node,
        PrimitiveKernel(
            "onednn.avg_pool_grad", dnnl::pooling_backward(pd), pd.scratchpad_desc(), c.engine(),
            {{DNNL_ARG_DIFF_DST, false, 0, pd.diff_dst_desc()}, {DNNL_ARG_DIFF_SRC, true, 0, pd.diff_src_desc()}}),
        {dy_storage}, {dx});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
