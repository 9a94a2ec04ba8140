#include "backends/cpu/channels_last.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/op_def.h"

namespace lockstep::cpu {
namespace {

using Ints = std::vector<int64_t>;

// Returns the position in N,spatial,C of dimension `dim` of N,C,spatial.
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
    bool reads_moved = false, makes_moved = false;  // reads or makes values that are now channels-last
    for (Value operand : node.operands()) reads_moved = reads_moved || IsMoved(operand.shape());
    for (size_t i = 0; i < node.num_results(); ++i) makes_moved = makes_moved || IsMoved(node.type(i).shape);
    NodeSpec spec = CopyOf(node, values_);
    const bool transposed = makes_moved && !reads_moved && node.op().has_trait(kRematerialised);
    if ((makes_moved || reads_moved) && !transposed) RETURN_IF_ERROR(Rewrite(node, spec));
    ASSIGN_OR_RETURN(Node * copy, graph.Insert(std::move(spec)));
    if (transposed) {
      // The computed value has the original order of dimensions. The transpose makes no copy: the loop computes the
      // value at the transposed indices.
      ASSIGN_OR_RETURN(
          copy,
          graph.Insert({&GetOp("transpose"), {copy->result()}, {{"permutation", Permutation()}}, node.source(), {}}));
    }
    for (size_t i = 0; i < node.num_results(); ++i) {
      values_[{const_cast<Node*>(&node), static_cast<int>(i)}] = copy->result(i);
    }
    return absl::OkStatus();
  }

  // N, C, spatial to N, spatial, C.
  Ints Permutation() const {
    Ints permutation(static_cast<size_t>(rank_));
    std::iota(permutation.begin(), permutation.end(), int64_t{0});
    std::rotate(permutation.begin() + 1, permutation.begin() + 2, permutation.end());
    return permutation;
  }

  absl::Status Rewrite(const Node& node, NodeSpec& spec) const {
    if (node.op().has_trait(kElementwise)) return absl::OkStatus();
    if (node.op().reduction()) return RewriteReduction(node, spec);
    return Unimplemented() << "no channels-last form of " << node.Describe();
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
