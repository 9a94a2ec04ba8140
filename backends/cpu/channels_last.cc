#include "backends/cpu/channels_last.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/op_def.h"

namespace lockstep::cpu {
namespace {

using Ints = std::vector<int64_t>;

// Where dimension `dim` of N,C,spatial is in N,spatial,C.
int64_t Moved(int64_t dim, int64_t rank) {
  if (dim == 0) return 0;
  return dim == 1 ? rank - 1 : dim - 1;
}

Shape Permuted(const Shape& shape) {
  Ints dims = shape.dims();
  std::rotate(dims.begin() + 1, dims.begin() + 2, dims.end());
  return Shape(std::move(dims));
}

class Rewriter {
 public:
  Rewriter(const Graph& body, const Shape& shape) : body_(body), shape_(shape), rank_(shape.rank()) {}

  absl::StatusOr<Graph> Run() {
    Graph graph(body_.name());
    for (const Input& input : body_.inputs()) {
      ASSIGN_OR_RETURN(values_[input.value], graph.AddInput(input.name(), TypeOf(input.value)));
    }
    for (const Node& node : body_.nodes()) RETURN_IF_ERROR(Copy(node, graph));
    for (const Result& result : body_.results()) {
      RETURN_IF_ERROR(graph.AddResult(result.name, values_.at(result.value)));
    }
    return graph;
  }

 private:
  bool IsMoved(const Shape& shape) const { return shape == shape_; }
  TensorType TypeOf(Value value) const {
    return {value.dtype(), IsMoved(value.shape()) ? Permuted(value.shape()) : value.shape()};
  }

  absl::Status Copy(const Node& node, Graph& graph) {
    NodeSpec spec = CopyOf(node, values_);
    bool moves = false;  // whether the node has to do with a value that lies otherwise now
    for (size_t i = 0; i < node.num_results(); ++i) moves = moves || IsMoved(node.type(i).shape);
    for (Value operand : node.operands()) moves = moves || IsMoved(operand.shape());
    if (moves) RETURN_IF_ERROR(Rewrite(node, graph, spec));
    ASSIGN_OR_RETURN(Node * copy, graph.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) {
      values_[{const_cast<Node*>(&node), static_cast<int>(i)}] = copy->result(i);
    }
    return absl::OkStatus();
  }

  absl::Status Rewrite(const Node& node, Graph& graph, NodeSpec& spec) const {
    if (node.op().has_trait(kElementwise)) return absl::OkStatus();
    if (node.Is("broadcast") && !IsMoved(node.operand(0).shape())) return RewriteBroadcast(node, graph, spec);
    if (node.Is("iota")) {
      spec.attributes["dim"] = Moved(node.attr<int64_t>("dim"), rank_);
      spec.attributes["shape"] = Permuted(shape_).dims();
      return absl::OkStatus();
    }
    if (node.op_name().starts_with("reduce_") && node.attributes().contains("dims"))
      return RewriteReduction(node, spec);
    return Unimplemented() << "no channels-last form of " << node.Describe();
  }

  // Dims of a broadcast increase: the operand is transposed where they would not.
  absl::Status RewriteBroadcast(const Node& node, Graph& graph, NodeSpec& spec) const {
    Ints dims = node.attr<Ints>("dims");
    for (int64_t& dim : dims) dim = Moved(dim, rank_);
    Ints order(dims.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return dims[static_cast<size_t>(a)] < dims[static_cast<size_t>(b)]; });
    if (!std::is_sorted(order.begin(), order.end())) {
      ASSIGN_OR_RETURN(
          Node * transpose,
          graph.Insert({&GetOp("transpose"), {spec.operands[0]}, {{"permutation", order}}, node.source(), {}}));
      spec.operands[0] = transpose->result();
      std::sort(dims.begin(), dims.end());
    }
    spec.attributes["dims"] = std::move(dims);
    spec.attributes["shape"] = Permuted(shape_).dims();
    return absl::OkStatus();
  }

  absl::Status RewriteReduction(const Node& node, NodeSpec& spec) const {
    Ints dims = node.attr<Ints>("dims"), kept;
    for (int64_t dim = 0; dim < rank_; ++dim) {
      if (std::find(dims.begin(), dims.end(), dim) == dims.end()) kept.push_back(Moved(dim, rank_));
    }
    if (!std::is_sorted(kept.begin(), kept.end()) || IsMoved(node.type().shape)) {
      return Unimplemented() << "no channels-last form of " << node.Describe();
    }
    for (int64_t& dim : dims) dim = Moved(dim, rank_);
    std::sort(dims.begin(), dims.end());
    spec.attributes["dims"] = std::move(dims);
    return absl::OkStatus();
  }

  const Graph& body_;
  const Shape& shape_;
  const int64_t rank_;
  std::unordered_map<Value, Value, ValueHash> values_;
};

}  // namespace

absl::StatusOr<Graph> ChannelsLastBody(const Graph& body, const Shape& shape) { return Rewriter(body, shape).Run(); }

}  // namespace lockstep::cpu
