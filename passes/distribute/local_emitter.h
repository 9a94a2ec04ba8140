// Inserts nodes into the local program of n ranks along `data`, with the placements of their results: in a local graph
// no rule places new nodes. With one rank the graph has no mesh and no placements. For FoldVirtualRanks alone.
//
// Keeps the first error. From then on functions return null values and accept them.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph.h"

namespace lockstep::passes {

class LocalEmitter {
 public:
  LocalEmitter(Graph& graph, int64_t ranks) : graph_(graph), ranks_(ranks) {}

  Graph& graph() { return graph_; }
  int64_t ranks() const { return ranks_; }
  const absl::Status& status() const { return status_; }
  void Keep(absl::Status status) { status_.Update(std::move(status)); }  // if it is the first error
  void set_source(std::string source) { source_ = std::move(source); }
  const std::string& source() const { return source_; }

  // The placements of a value that is placed so along `data`.
  PlacementMap Along(Placement placement) const;

  // Any op. All results are placed as `placement` along `data`.
  std::vector<Value> Ops(std::string_view op, std::vector<Value> operands, AttributeMap attributes,
                         Placement placement);
  Value Op(std::string_view op, std::vector<Value> operands, AttributeMap attributes, Placement placement) {
    return Ops(op, std::move(operands), std::move(attributes), placement)[0];
  }
  Value Reshape(Value x, Shape shape);  // placed as x; always inserts a node, whose result is row-major in memory
  Value Reshape(Value x, Shape shape, Placement placement);
  Value Splat(double value, const TensorType& type, Placement placement);
  Value Named(Value value, std::string_view name);  // sets the name, and returns the value

  // Part i of `parts` equal parts of this rank's part of a value that is split along `dim`.
  Value Cut(Value x, int64_t dim, int64_t i, int64_t parts);
  // The parts of a value that is split along `dim`, joined: the inverse of Cut.
  Value Join(const std::vector<Value>& parts, int64_t dim);

  // The collectives and `shard` along `data`, for several ranks.
  Value Shard(Value x, int64_t dim) {
    return Op("shard", {x}, {{"axis", Axis()}, {"dim", dim}}, Placement::Split(dim));
  }
  std::vector<Value> Gather(const std::vector<Value>& xs, int64_t dim, int64_t bucket = -1);
  // The number of virtual rank i of the `parts` of this rank: i64[].
  Value VirtualRank(int64_t i, int64_t parts);
  // This rank's coordinate, and a number that this rank's program adds to it: i64[].
  Value RankPlus(int64_t number);
  // The entries from `begin` to `end` of dimension `dim` of x, which is replicated, as this rank's part of a value that
  // is split along it. Programs of other ranks may have other entries, and as many.
  Value Own(Value x, int64_t dim, int64_t begin, int64_t end);

  static std::string Axis() { return std::string(kDataAxis); }

 private:
  Graph& graph_;
  const int64_t ranks_;
  std::string source_;
  absl::Status status_;
};

}  // namespace lockstep::passes
