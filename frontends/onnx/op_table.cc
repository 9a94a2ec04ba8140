#include "frontends/onnx/op_table.h"

#include <set>

#include "absl/strings/str_join.h"
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

namespace {

// The error for an operator that has no row for `opset`.
absl::Status NoRow(std::string_view domain, std::string_view type, int64_t opset) {
  std::set<std::string> domains = {"ai.onnx"}, types;  // all domains, and the operators of this one
  for (const OnnxOp& op : AllOnnxOps()) {
    if (!op.domain.empty()) domains.emplace(op.domain);
    if (op.domain == domain) types.emplace(op.type);
  }
  const std::string name =
      "operator " + std::string(type) + " of domain " + std::string(domain.empty() ? "ai.onnx" : domain);
  if (types.contains(std::string(type))) return Unimplemented() << name << " is not supported in opset " << opset;
  if (domain.empty()) return Unimplemented() << name << " (opset " << opset << ") is not supported";
  return Unimplemented() << name << " (opset " << opset << ") is not supported; supported are "
                         << (types.empty() ? "the domains " + absl::StrJoin(domains, ", ")
                                           : absl::StrJoin(types, ", "));
}

}  // namespace

absl::StatusOr<const OnnxOp*> FindOnnxOp(std::string_view domain, std::string_view type, int64_t opset) {
  if (IsDefaultDomain(domain)) domain = "";
  for (const OnnxOp& op : AllOnnxOps()) {
    if (op.type == type && op.domain == domain && opset >= op.since && opset <= op.until) return &op;
  }
  return NoRow(domain, type, opset);
}

std::vector<OnnxOperator> SupportedOnnxOperators() {
  std::vector<OnnxOperator> operators;
  for (const OnnxOp& op : AllOnnxOps()) {
    const int64_t until = op.until == kNoEnd ? kNewestOpset : op.until;
    operators.push_back({std::string(op.domain), std::string(op.type), op.since, until});
  }
  return operators;
}

}  // namespace lockstep
