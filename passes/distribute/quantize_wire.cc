#include "passes/distribute/quantize_wire.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"
#include "core/ops/int8_wire.h"
#include "passes/distribute/rank_states.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;
using ops::kWireBlock;

int64_t BlocksOf(int64_t elements) { return (elements + kWireBlock - 1) / kWireBlock; }

Ints FirstDims(int64_t count) {
  Ints dims;
  for (int64_t i = 0; i < count; ++i) dims.push_back(i);
  return dims;
}

// Quantized blocks: codes i8[..., kWireBlock], and a scale f32[...] for each block.
struct Quantized {
  Value codes, scale;
};

Quantized Quantize(Builder& b, Value blocks) {
  const int64_t last = blocks.shape().rank() - 1;
  const Value largest = b.ReduceMax(b.Unary("abs", blocks), {last});
  const Value scale = b.Div(largest, b.SplatLike(ops::kLargestWireCode, largest));
  const Value quotient = b.Div(blocks, b.Broadcast(scale, blocks.shape(), FirstDims(last)));
  return {b.Convert(b.Unary("round", quotient), DType::kI8), scale};
}

Value Dequantize(Builder& b, const Quantized& quantized) {
  const Value codes = b.Convert(quantized.codes, DType::kF32);
  return b.Mul(codes, b.Broadcast(quantized.scale, codes.shape(), FirstDims(codes.shape().rank() - 1)));
}

// Returns the rounding error of quantized blocks; 0 for elements whose error is not finite.
Value RoundingError(Builder& b, Value blocks, const Quantized& quantized) {
  const Value lost = b.Sub(blocks, Dequantize(b, quantized));
  const Value infinity = b.SplatLike(std::numeric_limits<double>::infinity(), lost);
  const Value is_finite = b.Compare(b.Unary("abs", lost), infinity, "lt");
  return b.Select(is_finite, lost, b.SplatLike(0, lost));
}

Quantized Communicate(Builder& b, std::string_view op, const Quantized& quantized, const AttributeMap& attributes) {
  return {b.Op(op, {quantized.codes}, attributes), b.Op(op, {quantized.scale}, attributes)};
}

// Takes one share of each rank, [n,...] split(0). Returns [n,n,...] split(0), in which rank r has its share at index r
// and zeros elsewhere.
Value AtOwnRank(Builder& b, Value shares) {
  const int64_t ranks = shares.shape()[0];
  const Shape shape = WithFront(ranks, shares.shape());
  const TensorType index{DType::kI32, Shape({ranks, ranks})};
  const Value rank = b.Iota(index, 0), share = b.Iota(index, 1);
  const Value is_own = b.Broadcast(b.Compare(rank, share, "eq"), shape, {0, 1});
  Ints dims = FirstDims(shape.rank());
  dims.erase(dims.begin() + 1);
  const Value repeated = b.Broadcast(shares, shape, dims);
  return b.Select(is_own, repeated, b.SplatLike(0, repeated));
}

// One tensor of a bucket: a range of the elements of the row that travels.
struct Piece {
  TensorType type;
  int64_t begin = 0, end = 0;  // its blocks, in elements; the last piece extends to the end of the row
  std::string state = {};      // the state whose gradient it is; empty: none
  Value residual = {};         // f32[n, ...]; null without a state
  int64_t count() const { return type.shape.num_elements(); }
};

class Quantization {
 public:
  Quantization(Graph& graph, Node& reduce)
      : graph_(graph),
        reduce_(reduce),
        axis_(reduce.attr<std::string>("axis")),
        ranks_(*graph.mesh().axis_size(axis_)),
        b_(graph, &reduce, reduce.source()) {}

  absl::Status Run() {
    RETURN_IF_ERROR(MakePieces());
    std::vector<Value> sums(pieces_.size()), lost(pieces_.size());
    if (row_ > 0) Travel(sums, lost);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (!sums[i]) sums[i] = b_.Splat(0, pieces_[i].type);  // a tensor without elements
    }
    RETURN_IF_ERROR(b_.status());
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].residual)
        RETURN_IF_ERROR(AddStateResultWith(graph_, pieces_[i].state, pieces_[i].residual, lost[i], reduce_.source()));
    }
    return Replace(sums);
  }

 private:
  absl::Status MakePieces() {
    int64_t blocks = 0;
    for (Value operand : reduce_.operands()) {
      Piece& piece = pieces_.emplace_back(Piece{operand.type()});
      piece.begin = blocks * kWireBlock;
      blocks += BlocksOf(piece.count());
      piece.end = blocks * kWireBlock;
      if (piece.count() == 0) continue;
      last_ = pieces_.size() - 1;
      RETURN_IF_ERROR(AddResidual(operand, piece));
    }
    blocks_ = (blocks + ranks_ - 1) / ranks_;
    row_ = ranks_ * blocks_ * kWireBlock;
    if (row_ > 0) pieces_[last_].end = row_;
    return absl::OkStatus();
  }

  absl::Status AddResidual(Value operand, Piece& piece) {
    const Input* const state = StateOfGradient(graph_, operand.name());
    if (!state) return absl::OkStatus();
    const std::string name = state->name() + "/residual/" + axis_;
    if (graph_.FindInput(name)) return absl::OkStatus();  // another part of the gradient has the residual
    piece.state = state->name();
    ASSIGN_OR_RETURN(piece.residual, graph_.AddInput(name, {DType::kF32, WithFront(ranks_, piece.type.shape)},
                                                     /*is_state=*/true, {{axis_, Placement::Split(0)}}));
    return absl::OkStatus();
  }

  // Returns each rank's terms of all pieces, concatenated: f32[n, row] split(0).
  Value Row() {
    std::vector<Value> ranges;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      if (piece.count() == 0) continue;
      const Shape stacked = WithFront(ranks_, piece.type.shape);
      Value part = b_.Op("parts", {reduce_.operand(i)}, {{"axis", axis_}, {"shape", stacked.dims()}});
      if (piece.residual) part = b_.Add(part, piece.residual);
      ranges.push_back(b_.Reshape(part, Shape({ranks_, piece.count()})));
      const int64_t rest = piece.end - piece.begin - piece.count();
      if (rest > 0) ranges.push_back(b_.Splat(0, {DType::kF32, Shape({ranks_, rest})}));
    }
    return ranges.size() == 1 ? ranges[0] : b_.Concat(ranges, 1);
  }

  void Travel(std::vector<Value>& sums, std::vector<Value>& lost) {
    const Value blocks = b_.Reshape(Row(), Shape({ranks_, ranks_, blocks_, kWireBlock}));
    const Quantized sent = Quantize(b_, blocks);
    const Quantized arrived =
        Communicate(b_, "all_to_all", sent, {{"axis", axis_}, {"split_dim", int64_t{1}}, {"concat_dim", int64_t{0}}});
    const Value sum = b_.ReduceSum(Dequantize(b_, arrived), {0});
    const Quantized share = Quantize(b_, sum);
    const Quantized gathered = Communicate(b_, "all_gather", share, {{"axis", axis_}, {"dim", int64_t{0}}});
    const Value whole = b_.Reshape(Dequantize(b_, gathered), Shape({row_}));
    const Value lost_of_parts = RoundingError(b_, blocks, sent), lost_of_sum = RoundingError(b_, sum, share);
    const Value owed = b_.Reshape(b_.Add(lost_of_parts, AtOwnRank(b_, lost_of_sum)), Shape({ranks_, row_}));
    if (!b_.status().ok()) return;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      if (piece.count() == 0) continue;
      const int64_t end = piece.begin + piece.count();
      sums[i] = b_.Reshape(b_.Slice(whole, {piece.begin}, {end}), piece.type.shape);
      if (piece.residual) lost[i] = b_.Reshape(b_.Slice(owed, {0, piece.begin}, {ranks_, end}), piece.residual.shape());
    }
    NameWhatTravels(sent, arrived, share, gathered);
  }

  // Gives the communicated values names that users recognise.
  void NameWhatTravels(const Quantized& sent, const Quantized& arrived, const Quantized& share,
                       const Quantized& gathered) {
    const std::string name = reduce_.operand(last_).name() + "/int8";
    for (const auto& [quantized, suffix] : {std::pair(sent, ""), std::pair(arrived, "/of_ranks"),
                                            std::pair(share, "/sum"), std::pair(gathered, "/sums")}) {
      graph_.SetName(quantized.codes, name + suffix);
      graph_.SetName(quantized.scale, name + suffix + "/scale");
    }
  }

  absl::Status Replace(const std::vector<Value>& sums) {
    std::vector<std::string> names;
    for (size_t i = 0; i < sums.size(); ++i) {
      names.push_back(reduce_.result_name(i));
      graph_.ReplaceUses(reduce_.result(i), sums[i]);
    }
    graph_.Erase(&reduce_);
    for (size_t i = 0; i < sums.size(); ++i) graph_.SetName(sums[i], names[i]);
    return absl::OkStatus();
  }

  Graph& graph_;
  Node& reduce_;
  const std::string axis_;
  const int64_t ranks_;
  Builder b_;
  std::vector<Piece> pieces_;
  size_t last_ = 0;     // the last piece that has elements
  int64_t blocks_ = 0;  // the number of blocks that each rank adds up
  int64_t row_ = 0;     // the number of elements that travel
};

absl::StatusOr<bool> RunQuantizeWire(Graph& graph) {
  if (!graph.is_placed()) return false;
  std::vector<Node*> found;
  for (Node& node : graph.nodes()) {
    if (node.op().collective() != CollectiveOp::kAllReduce || node.attr<std::string>("wire") != "int8") continue;
    if (*graph.mesh().axis_size(node.attr<std::string>("axis")) > 1) found.push_back(&node);
  }
  for (Node* node : found) RETURN_IF_ERROR(Quantization(graph, *node).Run());
  return !found.empty();
}

}  // namespace

const Input* StateOfGradient(const Graph& graph, std::string_view name) {
  constexpr std::string_view kPrefix = "grad/";
  if (!name.starts_with(kPrefix)) return nullptr;
  name.remove_prefix(kPrefix.size());
  const Input* found = nullptr;
  for (const Input& input : graph.inputs()) {
    if (!input.is_state || !name.starts_with(input.name())) continue;
    // The suffix "/sum" marks a sum that is divided by a count later; ".1" makes names unique.
    const std::string_view rest = name.substr(input.name().size());
    if (!rest.empty() && rest[0] != '/' && rest[0] != '.') continue;
    if (found == nullptr || input.name().size() > found->name().size()) found = &input;
  }
  return found && graph.FindResult(found->name(), /*is_state=*/true) ? found : nullptr;
}

Pass QuantizeWire() { return {"quantize-wire", RunQuantizeWire, Keeps::kResults, /*needs_mesh=*/true}; }

}  // namespace lockstep::passes
