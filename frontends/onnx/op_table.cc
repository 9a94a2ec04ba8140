#include "frontends/onnx/op_table.h"

#include <algorithm>

#include "frontends/onnx/imported_model.h"
#include "frontends/onnx/model_file.h"

namespace lockstep {

const std::vector<OnnxOp>& AllOnnxOps() {
  static const std::vector<OnnxOp> ops = [] {
    std::vector<OnnxOp> all;
    // clang-format off: one a line
    for (const auto& family : {
             ElementwiseOps(),
             ActivationOps(),
             BitOps(),
             ConstantOps(),
             ShapeOps(),
             RearrangingOps(),
             SlicingOps(),
             PaddingOps(),
             IndexingOps(),
             ReductionOps(),
             MatMulOps(),
             EinsumOps(),
             MatrixOps(),
             ConvolutionOps(),
             PoolingOps(),
             UnpoolingOps(),
             ResizeOps(),
             SamplingOps(),
             RegionOps(),
             SelectionOps(),
             NormalizationOps(),
             LayerNormalizationOps(),
             RandomOps(),
             LossOps(),
             QuantizationOps(),
             SignalOps(),
             AttentionOps(),
             LinearAttentionOps(),
             RotaryOps(),
             ControlFlowOps(),
             ScanOps(),
             RecurrentOps(),
             SequenceOps(),
         }) {
      // clang-format on
      all.insert(all.end(), family.begin(), family.end());
    }
    return all;
  }();
  return ops;
}

absl::StatusOr<const OnnxOp*> FindOnnxOp(std::string_view domain, std::string_view type, int64_t opset) {
  const bool is_default = domain.empty() || domain == "ai.onnx";
  const OnnxOp* other_opset = nullptr;
  for (const OnnxOp& op : AllOnnxOps()) {
    if (op.type != type || !is_default) continue;
    if (opset >= op.since && opset <= op.until) return &op;
    other_opset = &op;
  }
  if (other_opset != nullptr) {
    return Unimplemented() << "operator " << type << " of domain ai.onnx is not supported in opset " << opset;
  }
  return Unimplemented() << "operator " << type << " of domain " << (is_default ? "ai.onnx" : domain) << " (opset "
                         << opset << ") is not supported";
}

std::vector<OnnxOperator> SupportedOnnxOperators() {
  std::vector<OnnxOperator> operators;
  for (const OnnxOp& op : AllOnnxOps())
    operators.push_back({std::string(op.type), op.since, std::min(op.until, kNewestOpset)});
  return operators;
}

}  // namespace lockstep
