#include "backends/loops/channels_last.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/op_def.h"

namespace lockstep {
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

// N, C, spatial to N, spatial, C.
Ints ToLast(int64_t rank) {
  Ints permutation(static_cast<size_t>(rank));
  std::iota(permutation.begin(), permutation.end(), int64_t{0});
  std::rotate(permutation.begin() + 1, permutation.begin() + 2, permutation.end());
  return permutation;
}

// N, spatial, C to N, C, spatial.
Ints FromLast(int64_t rank) {
  Ints permutation(static_cast<size_t>(rank));
  for (int64_t dim = 0; dim < rank; ++dim) permutation[static_cast<size_t>(dim)] = Moved(dim, rank);
  return permutation;
}

// Returns the value at transposed indices. This makes no copy: the loop computes the value there.
absl::StatusOr<Value> Transposed(Value value, Ints permutation, const std::string& source, Graph& graph) {
  ASSIGN_OR_RETURN(Node * transpose,
                   graph.Insert({&GetOp("transpose"), {value}, {{"permutation", std::move(permutation)}}, source, {}}));
  return transpose->result();
}

class Rewriter {
 public:
  Rewriter(const Graph& body, const Shape& shape, const std::vector<bool>& inputs)
      : body_(body), shape_(shape), rank_(shape.rank()), inputs_(inputs) {}

  absl::StatusOr<Graph> Run() {
    Graph graph(body_.name());
    // All inputs come before the first node, so that a node cannot take the name of an input.
    for (size_t i = 0; i < body_.inputs().size(); ++i) RETURN_IF_ERROR(AddInput(i, graph));
    for (size_t i = 0; i < body_.inputs().size(); ++i) RETURN_IF_ERROR(TransposeInput(i, graph));
    for (const Node& node : body_.nodes()) RETURN_IF_ERROR(Copy(node, graph));
    for (const Result& result : body_.results()) {
      RETURN_IF_ERROR(graph.AddResult(result.name, values_.at(result.value)));
    }
    return graph;
  }

 private:
  bool IsMoved(const Shape& shape) const { return shape == shape_; }

  bool ReadsMoved(size_t i) const { return inputs_.empty() ? IsMoved(body_.inputs()[i].value.shape()) : inputs_[i]; }

  absl::Status AddInput(size_t i, Graph& graph) {
    const Input& input = body_.inputs()[i];
    const Shape& shape = input.value.shape();
    ASSIGN_OR_RETURN(values_[input.value],
                     graph.AddInput(input.name(), {input.value.dtype(), ReadsMoved(i) ? Permuted(shape) : shape}));
    return absl::OkStatus();
  }

  absl::Status TransposeInput(size_t i, Graph& graph) {
    const Value input = body_.inputs()[i].value;
    const bool computes_moved = IsMoved(input.shape());
    if (computes_moved == ReadsMoved(i)) return absl::OkStatus();
    Ints permutation = computes_moved ? ToLast(input.shape().rank()) : FromLast(input.shape().rank());
    ASSIGN_OR_RETURN(values_[input], Transposed(values_[input], std::move(permutation), "", graph));
    return absl::OkStatus();
  }

  absl::Status Copy(const Node& node, Graph& graph) {
    bool reads_moved = false, makes_moved = false;  // reads or makes values that are now channels-last
    for (Value operand : node.operands()) reads_moved = reads_moved || IsMoved(operand.shape());
    for (size_t i = 0; i < node.num_results(); ++i) makes_moved = makes_moved || IsMoved(node.type(i).shape);
    NodeSpec spec = CopyOf(node, values_);
    const bool transposed = makes_moved && !reads_moved && node.op().has_trait(kRematerialised);
    if ((makes_moved || reads_moved) && !transposed) RETURN_IF_ERROR(Rewrite(node, spec));
    ASSIGN_OR_RETURN(Node * copy, graph.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) {
      values_[{const_cast<Node*>(&node), static_cast<int>(i)}] = copy->result(i);
    }
    if (transposed) {  // the computed value has the original order of dimensions
      ASSIGN_OR_RETURN(values_[const_cast<Node&>(node).result()],
                       Transposed(copy->result(), ToLast(rank_), node.source(), graph));
    }
    return absl::OkStatus();
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
  const std::vector<bool>& inputs_;
  std::unordered_map<Value, Value, ValueHash> values_;
};

}  // namespace

std::vector<int64_t> ChannelsLastStrides(const std::vector<int64_t>& dims) {
  Ints strides(dims.size(), 1);
  int64_t stride = dims[1];
  for (size_t dim = dims.size(); dim-- > 2;) {
    strides[dim] = stride;
    stride *= dims[dim];
  }
  strides[0] = stride;
  return strides;
}

bool IsAlsoRowMajor(const Shape& shape) {
  return shape.rank() < 3 || shape[1] == 1 || shape.num_elements() == shape[0] * shape[1];
}

std::optional<Shape> ChannelsLastShapeOf(const Node& node, const LayoutFacts& facts) {
  std::optional<Shape> shape;
  for (size_t i = 0; i < node.operands().size() && !shape; ++i) {
    if (facts.is_channels_last(node.operand(i))) shape = node.operand(i).shape();
  }
  int needs = 0, balance = 0;
  for (size_t i = 0; i < node.num_results(); ++i) {
    const Value result = const_cast<Node&>(node).result(i);
    const int need = facts.need(result);
    if (need > 0 && !shape) shape = result.shape();
    if (result.shape() == shape) needs += need;
  }
  for (const Value& operand : node.operands()) {
    if (operand.shape() == shape) balance += facts.is_channels_last(operand) ? 1 : -1;
  }
  return needs > 0 || (needs == 0 && balance >= 0) ? shape : std::nullopt;
}

absl::StatusOr<Graph> ChannelsLastBody(const Graph& body, const std::optional<Shape>& shape,
                                       const std::vector<bool>& inputs) {
  if (shape) return Rewriter(body, *shape, inputs).Run();
  std::vector<Ints> permutations(body.inputs().size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]) permutations[i] = FromLast(body.inputs()[i].value.shape().rank());
  }
  return BodyOfTransposed(body, permutations);
}

absl::StatusOr<Graph> BodyOfTransposed(const Graph& body, const std::vector<Ints>& permutations) {
  Graph graph(body.name());
  std::unordered_map<Value, Value, ValueHash> values;
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    const Input& input = body.inputs()[i];
    Ints dims = input.value.shape().dims();
    for (size_t dim = 0; dim < permutations[i].size(); ++dim)
      dims[static_cast<size_t>(permutations[i][dim])] = input.value.shape().dims()[dim];
    ASSIGN_OR_RETURN(values[input.value], graph.AddInput(input.name(), {input.value.dtype(), Shape(std::move(dims))}));
  }
  // All inputs come before the first node, so that a node cannot take the name of an input.
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    Value& value = values.at(body.inputs()[i].value);
    if (permutations[i].empty()) continue;
    ASSIGN_OR_RETURN(value, Transposed(value, permutations[i], "", graph));
  }
  for (const Node& node : body.nodes()) RETURN_IF_ERROR(graph.InsertCopy(node, values).status());
  for (const Result& result : body.results()) RETURN_IF_ERROR(graph.AddResult(result.name, values.at(result.value)));
  return graph;
}

}  // namespace lockstep
