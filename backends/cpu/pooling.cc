// Max and average pooling and their gradients by oneDNN, in the layout in which their operand comes. Max pooling whose gradient
// is taken too remembers where the maxima were: its gradient then reads no x.

#include "backends/cpu/emitters.h"

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

// The max_pool_grad of the same windows over the same x as this max_pool, or the other way round.
const Node* Partner(const Node& node, std::string_view op) {
  for (const Node* user : node.operand(0).node->users()) {
    if (user->Is(op) && user->operand(0) == node.operand(0) && user->attributes() == node.attributes()) return user;
  }
  return nullptr;
}

// Runs max_pool forward with a workspace; the storages of y and the workspace.
struct MaxPoolForward {
  int y = -1, workspace = -1;
};

absl::StatusOr<MaxPoolForward> EmitForwardWithWorkspace(const Node& node,
                                                        const dnnl::pooling_forward::primitive_desc& pd, int x, int y,
                                                        EmitContext& c) {
  const Desc workspace_desc = pd.workspace_desc();
  const int workspace =
      c.builder().DefineTemporary(node.result_name() + ".maxima", DType::kU8, "opaque", workspace_desc.get_size());
  c.Add(node,
        PrimitiveKernel("onednn.max_pool", dnnl::pooling_forward(pd), pd.scratchpad_desc(), c.engine(),
                        {{DNNL_ARG_SRC, false, 0, pd.src_desc()},
                         {DNNL_ARG_DST, true, 0, pd.dst_desc()},
                         {DNNL_ARG_WORKSPACE, true, 1, workspace_desc}}),
        {x}, {y, workspace});
  return MaxPoolForward{y, workspace};
}

}  // namespace

absl::Status EmitMaxPool(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  const Pooling pooling(node, dnnl::algorithm::pooling_max);
  const bool train = Partner(node, "max_pool_grad") != nullptr;
  const Desc x_desc = c.ProducedDesc(node.operand(0));
  ASSIGN_OR_RETURN(const auto pd, CallOneDnn("max_pool", [&] {
                     return pooling.Forward(
                         c.engine(), train ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference,
                         x_desc, AnyLayout(node.type()));
                   }));
  ASSIGN_OR_RETURN(const int x, c.ReadAs(node, node.operand(0), pd.src_desc()));
  const int y = c.WriteAs(EmitContext::ResultOf(node), pd.dst_desc());
  if (train) {
    ASSIGN_OR_RETURN(const MaxPoolForward forward, EmitForwardWithWorkspace(node, pd, x, y, c));
    c.RememberWorkspace(&node, forward.workspace, pd.src_desc(), pd.dst_desc());
    return absl::OkStatus();
  }
  c.Add(node,
        PrimitiveKernel("onednn.max_pool", dnnl::pooling_forward(pd), pd.scratchpad_desc(), c.engine(),
                        {{DNNL_ARG_SRC, false, 0, pd.src_desc()}, {DNNL_ARG_DST, true, 0, pd.dst_desc()}}),
        {x}, {y});
  return absl::OkStatus();
}

absl::Status EmitMaxPoolGrad(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  const Pooling pooling(node, dnnl::algorithm::pooling_max);
  const Value dy = node.operand(1);
  const Node* partner = Partner(node, "max_pool");
  const EmitContext::Workspace* remembered = partner != nullptr ? c.FindWorkspace(partner) : nullptr;
  const Desc x_desc = remembered != nullptr ? remembered->x : c.ProducedDesc(node.operand(0));
  const Desc y_desc = remembered != nullptr ? remembered->y : AnyLayout(dy.type());
  ASSIGN_OR_RETURN(const auto forward, CallOneDnn("max_pool_grad", [&] {
                     return pooling.Forward(c.engine(), dnnl::prop_kind::forward_training, x_desc, y_desc);
                   }));
  int workspace = remembered != nullptr ? remembered->storage : -1;
  if (workspace < 0) {  // nobody has looked for the maxima yet
    ASSIGN_OR_RETURN(const int x, c.ReadAs(node, node.operand(0), forward.src_desc()));
    const int y = c.builder().DefineTemporary(node.result_name() + ".y", dy.dtype(), LayoutName(forward.dst_desc()),
                                              forward.dst_desc().get_size());
    ASSIGN_OR_RETURN(const MaxPoolForward ran, EmitForwardWithWorkspace(node, forward, x, y, c));
    workspace = ran.workspace;
  }
  ASSIGN_OR_RETURN(const auto pd, CallOneDnn("max_pool_grad", [&] {
                     return pooling.Backward(c.engine(), forward.src_desc(), forward.dst_desc(), forward);
                   }));
  ASSIGN_OR_RETURN(const int dy_storage, c.ReadAs(node, dy, pd.diff_dst_desc()));
  const int dx = c.WriteAs(EmitContext::ResultOf(node), pd.diff_src_desc());
  c.Add(node,
        PrimitiveKernel("onednn.max_pool_grad", dnnl::pooling_backward(pd), pd.scratchpad_desc(), c.engine(),
                        {{DNNL_ARG_DIFF_DST, false, 0, pd.diff_dst_desc()},
                         {DNNL_ARG_WORKSPACE, false, 1, forward.workspace_desc()},
                         {DNNL_ARG_DIFF_SRC, true, 0, pd.diff_src_desc()}}),
        {dy_storage, workspace}, {dx});
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
  // What it is the gradient of lies channels-last wherever a convolution is near, whatever dy comes from.
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
