#include "backends/cuda/matmul_epilogue.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "backends/cuda/emitters.h"
#include "core/ops/matmul.h"

namespace lockstep::cuda {
namespace {

// A body that matches a pattern: the indices of its inputs that are the product and the bias (-1: none).
struct Pattern {
  int product = -1, bias = -1;
  bool relu = false;
};

int InputOf(const Graph& body, Value value) {
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    if (body.inputs()[i].value == value) return static_cast<int>(i);
  }
  return -1;
}

std::optional<Pattern> PatternOf(const Graph& body) {
  if (body.results().size() != 1) return std::nullopt;
  Pattern pattern;
  size_t matched = 0;
  Value value = body.results()[0].value;
  if (value.node->Is("relu")) pattern.relu = true, ++matched, value = value.node->operand(0);
  pattern.product = InputOf(body, value);
  if (pattern.product < 0) {
    if (!value.node->Is("add")) return std::nullopt;
    Value product = value.node->operand(0), bias = value.node->operand(1);
    if (InputOf(body, product) < 0) std::swap(product, bias);
    pattern.product = InputOf(body, product);
    if (pattern.product < 0 || InputOf(body, bias) >= 0 || !bias.node->Is("broadcast")) return std::nullopt;
    pattern.bias = InputOf(body, bias.node->operand(0));
    const Shape& of_bias = bias.node->operand(0).shape();
    const std::vector<int64_t> last = {product.shape().rank() - 1};
    if (pattern.bias < 0 || of_bias.rank() != 1 || bias.node->attr<std::vector<int64_t>>("dims") != last ||
        of_bias[0] != product.shape()[last[0]]) {
      return std::nullopt;
    }
    matched += 2;
  }
  const bool is_all = matched > 0 && body.nodes().size() == matched &&
                      body.inputs().size() == (pattern.bias < 0 ? 1u : 2u) && pattern.bias != pattern.product;
  return is_all ? std::optional(pattern) : std::nullopt;
}

bool IsResult(const Graph& graph, const Node& node) {
  return std::any_of(graph.results().begin(), graph.results().end(),
                     [&](const Result& result) { return result.value.node == &node; });
}

std::optional<Pattern> PatternOf(const Node& node) {
  if (node.Is("fusion")) return PatternOf(node.attr<Region>("body").graph());
  // a relu alone is not a fusion
  return node.Is("relu") ? std::optional(Pattern{.product = 0, .relu = true}) : std::nullopt;
}

std::optional<MatMulEpilogue> EpilogueOf(const Graph& graph, const Node& fusion) {
  const std::optional<Pattern> pattern = PatternOf(fusion);
  if (!pattern) return std::nullopt;
  const Node* product = fusion.operand(static_cast<size_t>(pattern->product)).node;
  if (product == nullptr || !product->Is("matmul") || product->users().size() != 1 || IsResult(graph, *product) ||
      !SupportsMatMul(*product) || product->type().dtype == DType::kF64 ||
      product->type().dtype != product->operand(0).dtype()) {
    return std::nullopt;
  }
  // The product's columns must be the last dimension of its value.
  const ops::MatMulForm form(*product);
  const Shape& shape = product->type().shape;
  if (form.y[form.y.rank() - 1] != shape[shape.rank() - 1]) return std::nullopt;
  const cublasLtEpilogue_t epilogue = !pattern->relu       ? CUBLASLT_EPILOGUE_BIAS
                                      : pattern->bias >= 0 ? CUBLASLT_EPILOGUE_RELU_BIAS
                                                           : CUBLASLT_EPILOGUE_RELU;
  return MatMulEpilogue{product, epilogue, pattern->bias};
}

}  // namespace

MatMulEpilogues EpiloguesOf(const Graph& graph) {
  MatMulEpilogues found;
  for (const Node& node : graph.nodes()) {
    const std::optional<MatMulEpilogue> epilogue = EpilogueOf(graph, node);
    if (!epilogue) continue;
    found.by_fusion.emplace(&node, *epilogue);
    found.products.insert(epilogue->product);
  }
  return found;
}

}  // namespace lockstep::cuda
