// Builds nodes by name. Gradients, decompositions, frontends and passes write graphs with it. A Builder keeps the first
// error. From then on it returns null Values and accepts them as operands, so that an expression need not check each
// step. The caller checks status() before it uses the results.
//
// In a placed graph new nodes are placed by their ops' rules. If a rule requires a slice of a replicated operand, the
// builder inserts the slice. A node that would need communication is an error.
//
// Elementwise functions require equal types; there is no implicit broadcasting.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"
#include "core/op_def.h"

namespace lockstep {

class Builder {
 public:
  // Inserts before `before`, or at the end of the graph if that is null. New nodes get `source`.
  explicit Builder(Graph& graph, Node* before = nullptr, std::string source = "")
      : graph_(graph), before_(before), source_(std::move(source)) {}

  Graph& graph() { return graph_; }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // Clears the error so that the caller can continue after undoing the failed part.
  void ClearError() { status_ = absl::OkStatus(); }
  void set_source(std::string source) { source_ = std::move(source); }
  const std::string& source() const { return source_; }
  void set_before(Node* before) { before_ = before; }

  // Any op. The results are null after an error.
  std::vector<Value> Ops(std::string_view op, std::vector<Value> operands, AttributeMap attributes = {});
  Value Op(std::string_view op, std::vector<Value> operands, AttributeMap attributes = {});  // the first result

  // Copies `node`, of this graph or another. Its operands are mapped by `map`, and its results are added to `map`.
  void Copy(const Node& node, ValueMap& map);

  // --- Constants and shapes ------------------------------------------------------------------------------------------
  Value Constant(Tensor value);
  // A scalar constant, broadcast. A float dtype rounds the value. A value that an integer dtype cannot represent is an
  // error.
  Value Splat(double value, const TensorType& type);
  Value SplatLike(double value, Value like) { return like ? Splat(value, like.type()) : Value(); }
  Value Iota(const TensorType& type, int64_t dim);
  Value Reshape(Value x, Shape shape);                         // x itself if the shape is the same
  Value Transpose(Value x, std::vector<int64_t> permutation);  // result dimension i is x's dimension permutation[i]
  // x's dimension i becomes dimension dims[i] of the result (dims increasing); the other dimensions repeat x.
  Value Broadcast(Value x, Shape shape, std::vector<int64_t> dims);
  // Broadcasts a vector, such as a bias or a per-channel scale. Its only dimension becomes `dim`.
  Value BroadcastAlong(Value x, const Shape& shape, int64_t dim) { return Broadcast(x, shape, {dim}); }
  // Repeats x along `dims`, which a reduction removed: x has the shape shape.Without(dims).
  Value BroadcastOver(Value x, const Shape& shape, const std::vector<int64_t>& dims);
  Value Convert(Value x, DType dtype);  // x itself if it has that dtype
  Value Concat(std::vector<Value> xs, int64_t dim);
  Value Slice(Value x, std::vector<int64_t> start, std::vector<int64_t> limit, std::vector<int64_t> stride = {});
  Value Pad(Value x, std::vector<int64_t> low, std::vector<int64_t> high, double value = 0.0);

  Value Reverse(Value x, std::vector<int64_t> dims);  // x itself if dims is empty
  // See the ops gather, scatter_sum and scatter.
  Value Gather(Value x, Value indices, int64_t dim, int64_t batch_dims = 0);
  Value ScatterSum(Value indices, Value updates, int64_t dim, int64_t batch_dims, int64_t size);
  // For each index, the element of x at that index along `dim`, or 0 if the index is out of range. `indices` has the
  // shape of x without `dim`. Computed by a comparison, so that loops fuse it and its gradient.
  Value Pick(Value x, Value indices, int64_t dim);
  Value Scatter(Value x, Value indices, Value updates, int64_t dim, int64_t batch_dims, std::string kind);

  // --- Elementwise ---------------------------------------------------------------------------------------------------
  Value Unary(std::string_view op, Value x) { return Op(op, {x}); }
  Value Neg(Value x) { return Op("neg", {x}); }
  Value Exp(Value x) { return Op("exp", {x}); }
  Value Log(Value x) { return Op("log", {x}); }
  Value Sqrt(Value x) { return Op("sqrt", {x}); }
  Value Rsqrt(Value x) { return Op("rsqrt", {x}); }
  Value Tanh(Value x) { return Op("tanh", {x}); }
  Value Add(Value a, Value b) { return Op("add", {a, b}); }
  Value Sub(Value a, Value b) { return Op("sub", {a, b}); }
  Value Mul(Value a, Value b) { return Op("mul", {a, b}); }
  Value Div(Value a, Value b) { return Op("div", {a, b}); }
  Value Max(Value a, Value b) { return Op("max", {a, b}); }
  Value Min(Value a, Value b) { return Op("min", {a, b}); }
  Value Scale(Value x, double by) { return Mul(x, SplatLike(by, x)); }
  Value AddScalar(Value x, double term) { return Add(x, SplatLike(term, x)); }
  Value Compare(Value a, Value b, std::string direction) {
    return Op("compare", {a, b}, {{"direction", std::move(direction)}});
  }
  Value Select(Value condition, Value yes, Value no) { return Op("select", {condition, yes, no}); }

  // --- Reductions and products ---------------------------------------------------------------------------------------
  Value ReduceSum(Value x, std::vector<int64_t> dims);  // x itself if dims is empty
  Value ReduceMax(Value x, std::vector<int64_t> dims) { return Op("reduce_max", {x}, {{"dims", std::move(dims)}}); }
  Value ReduceMean(Value x, const std::vector<int64_t>& dims);
  Value MatMul(Value a, Value b, bool transpose_a = false, bool transpose_b = false) {
    return Op("matmul", {a, b}, {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}});
  }
  // a^T b, summed over the batch: [k, n] of [..., m, k] and [..., m, n].
  Value SumOfMatMuls(Value a, Value b) { return Op("matmul", {a, b}, {{"transpose_a", true}, {"sum_batch", true}}); }

  // --- Collectives ---------------------------------------------------------------------------------------------------
  Value AllReduce(Value x, std::string_view axis, ReduceKind kind);
  Value AllGather(Value x, std::string_view axis, int64_t dim);
  Value ReduceScatter(Value x, std::string_view axis, int64_t dim, ReduceKind kind);
  Value Shard(Value x, std::string_view axis, int64_t dim);  // this rank's slice of a replicated value

 private:
  Graph& graph_;
  Node* before_;
  std::string source_;
  absl::Status status_;
};

}  // namespace lockstep
