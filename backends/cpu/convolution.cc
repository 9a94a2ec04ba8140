// Convolution and its two gradients with oneDNN. Operands and results are channels-last, as in the loops and pools
// around them (docs/decisions/0006). oneDNN chooses the layouts of filters, which are reordered in each step; the
// gradient of a filter is reordered to row-major for its optimizer, unless it is first added to others.

#include <algorithm>

#include "backends/cpu/emitters.h"

namespace lockstep::cpu {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;

// The common part of the three ops: the types of the three tensors, and the window in oneDNN's terms.
struct Convolution {
  TensorType x, filter, y;
  Dims stride, padding_low, padding_high, dilation;
  int64_t groups = 1;

  Convolution(const Node& node, TensorType x_type, TensorType filter_type, TensorType y_type)
      : x(std::move(x_type)), filter(std::move(filter_type)), y(std::move(y_type)) {
    stride = node.attr<std::vector<int64_t>>("stride");
    padding_low = node.attr<std::vector<int64_t>>("padding_low");
    padding_high = node.attr<std::vector<int64_t>>("padding_high");
    dilation = node.attr<std::vector<int64_t>>("dilation");
    for (int64_t& d : dilation) --d;  // oneDNN's dilation is the number of skipped elements
    groups = node.attr<int64_t>("groups");
  }

  // The filter's dims in oneDNN's form: [groups, O / groups, C / groups, spatial...].
  Dims FilterDims() const {
    Dims dims = filter.shape.dims();
    if (groups == 1) return dims;
    dims[0] /= groups;
    dims.insert(dims.begin(), groups);
    return dims;
  }
  Desc FilterRowMajor() const {
    const Dims dims = FilterDims();
    return {dims, *OneDnnType(filter.dtype), Shape(dims).Strides()};
  }
  Desc X() const { return ChannelsLast(x); }
  Desc Y() const { return ChannelsLast(y); }
  Desc AnyFilter(DType dtype) const { return {FilterDims(), *OneDnnType(dtype), dnnl::memory::format_tag::any}; }

  dnnl::convolution_forward::primitive_desc Forward(const dnnl::engine& engine) const {
    return {engine,
            dnnl::prop_kind::forward_training,
            dnnl::algorithm::convolution_direct,
            X(),
            AnyFilter(x.dtype),
            Y(),
            stride,
            dilation,
            padding_low,
            padding_high,
            DefaultAttributes()};
  }
  dnnl::convolution_backward_data::primitive_desc GradInput(const dnnl::engine& engine) const {
    return Backward<dnnl::convolution_backward_data::primitive_desc>(engine, x.dtype);
  }
  // The result has the filter's dtype, which may be wider than that of x and y.
  dnnl::convolution_backward_weights::primitive_desc GradFilter(const dnnl::engine& engine) const {
    return Backward<dnnl::convolution_backward_weights::primitive_desc>(engine, filter.dtype);
  }

 private:
  template <typename PrimitiveDesc>
  PrimitiveDesc Backward(const dnnl::engine& engine, DType filter_dtype) const {
    return {engine,
            dnnl::algorithm::convolution_direct,
            X(),
            AnyFilter(filter_dtype),
            Y(),
            stride,
            dilation,
            padding_low,
            padding_high,
            Forward(engine),
            DefaultAttributes()};
  }
};

// Requires one of the three ops.
Convolution ConvolutionOf(const Node& node) {
  const TensorType &a = node.operand(0).type(), &b = node.operand(1).type();
  if (node.Is("convolution")) return {node, a, b, node.type()};
  if (node.Is("convolution_grad_input")) return {node, node.type(), a, b};
  return {node, a, node.type(), b};
}

// Adds the reorder of a filter. With groups, its descriptor has another rank than its value.
absl::StatusOr<int> ReadFilter(const Node& node, Value filter, const Convolution& conv, const Desc& desc,
                               EmitContext& c) {
  if (conv.groups == 1) return c.ReadAs(node, filter, desc);
  ASSIGN_OR_RETURN(const int from, c.RowMajorOf(node, filter));
  const Desc from_desc = conv.FilterRowMajor();
  if (LayoutName(desc).empty()) return from;
  ASSIGN_OR_RETURN(Kernel kernel, c.Reorder(from_desc, desc));
  const int to = c.builder().DefineTemporary(filter.name(), filter.dtype(), LayoutName(desc), desc.get_size());
  c.Add(node, std::move(kernel), {from}, {to});
  return to;
}

}  // namespace

bool HasFastConvolution(const Node& node) {
  if (!CheckForOneDnn(node).ok()) return false;
  const Convolution conv = ConvolutionOf(node);
  const absl::StatusOr<std::string> name = CallOneDnn("convolution", [&]() -> std::string {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    if (node.Is("convolution")) return conv.Forward(engine).impl_info_str();
    if (node.Is("convolution_grad_input")) return conv.GradInput(engine).impl_info_str();
    return conv.GradFilter(engine).impl_info_str();
  });
  return name.ok() && name->find("ref") == std::string::npos;
}

absl::Status EmitConvolution(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  const Convolution conv = ConvolutionOf(node);
  ASSIGN_OR_RETURN(const auto pd, CallOneDnn("convolution", [&] { return conv.Forward(c.engine()); }));
  ASSIGN_OR_RETURN(const int x, c.ReadAs(node, node.operand(0), pd.src_desc()));
  ASSIGN_OR_RETURN(const int filter, ReadFilter(node, node.operand(1), conv, pd.weights_desc(), c));
  const int y = c.WriteAs(EmitContext::ResultOf(node), pd.dst_desc());
  c.Add(node,
        PrimitiveKernel("onednn.convolution", dnnl::convolution_forward(pd), pd.scratchpad_desc(), c.engine(),
                        {{DNNL_ARG_SRC, false, 0, pd.src_desc()},
                         {DNNL_ARG_WEIGHTS, false, 1, pd.weights_desc()},
                         {DNNL_ARG_DST, true, 0, pd.dst_desc()}}),
        {x, filter}, {y});
  return absl::OkStatus();
}

absl::Status EmitConvolutionGradInput(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  const Convolution conv = ConvolutionOf(node);
  ASSIGN_OR_RETURN(const auto pd, CallOneDnn("convolution_grad_input", [&] { return conv.GradInput(c.engine()); }));
  ASSIGN_OR_RETURN(const int filter, ReadFilter(node, node.operand(0), conv, pd.weights_desc(), c));
  ASSIGN_OR_RETURN(const int dy, c.ReadAs(node, node.operand(1), pd.diff_dst_desc()));
  const int dx = c.WriteAs(EmitContext::ResultOf(node), pd.diff_src_desc());
  c.Add(node,
        PrimitiveKernel("onednn.convolution_grad_input", dnnl::convolution_backward_data(pd), pd.scratchpad_desc(),
                        c.engine(),
                        {{DNNL_ARG_WEIGHTS, false, 0, pd.weights_desc()},
                         {DNNL_ARG_DIFF_DST, false, 1, pd.diff_dst_desc()},
                         {DNNL_ARG_DIFF_SRC, true, 0, pd.diff_src_desc()}}),
        {filter, dy}, {dx});
  return absl::OkStatus();
}

absl::Status EmitConvolutionGradFilter(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  const Convolution conv = ConvolutionOf(node);
  ASSIGN_OR_RETURN(const auto pd, CallOneDnn("convolution_grad_filter", [&] { return conv.GradFilter(c.engine()); }));
  ASSIGN_OR_RETURN(const int x, c.ReadAs(node, node.operand(0), pd.src_desc()));
  ASSIGN_OR_RETURN(const int dy, c.ReadAs(node, node.operand(1), pd.diff_dst_desc()));
  Kernel kernel = PrimitiveKernel("onednn.convolution_grad_filter", dnnl::convolution_backward_weights(pd),
                                  pd.scratchpad_desc(), c.engine(),
                                  {{DNNL_ARG_SRC, false, 0, pd.src_desc()},
                                   {DNNL_ARG_DIFF_DST, false, 1, pd.diff_dst_desc()},
                                   {DNNL_ARG_DIFF_WEIGHTS, true, 0, pd.diff_weights_desc()}});
  const Value result = EmitContext::ResultOf(node);
  const std::string layout = LayoutName(pd.diff_weights_desc());
  if (layout.empty()) {
    c.Add(node, std::move(kernel), {x, dy}, {c.Write(node)});
    return absl::OkStatus();
  }
  const bool is_term = !node.users().empty() && std::all_of(node.users().begin(), node.users().end(),
                                                            [](const Node* user) { return IsSum(*user); });
  if (is_term && conv.groups == 1) {
    c.Add(node, std::move(kernel), {x, dy}, {c.WriteAs(result, pd.diff_weights_desc())});
    return absl::OkStatus();
  }
  // The reorder writes the gradient directly into its bucket.
  const int blocked =
      c.builder().DefineTemporary(result.name(), result.dtype(), layout, pd.diff_weights_desc().get_size());
  c.Add(node, std::move(kernel), {x, dy}, {blocked});
  ASSIGN_OR_RETURN(Kernel reorder, c.Reorder(pd.diff_weights_desc(), conv.FilterRowMajor()));
  c.Add(node, std::move(reorder), {blocked}, {c.Write(node)});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
