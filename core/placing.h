// Where the values of a placed graph are: asks the ops' placement rules, axis by axis, and moves values to where a node
// needs them. Graphs, builders and the distribute pass place nodes with it, and the verifier checks them.

#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/op_def.h"
#include "core/status.h"

namespace lockstep {

// What a rule says of one node along one axis; see PlacementContext.
struct PlacementRuling {
  std::vector<Placement> operands, required, results;
  bool decompose = false;
  AttributeMap decompose_with;
  std::string failure;
};

// A node that is, or is to be, in a placed graph. Borrows everything.
struct NodeToPlace {
  const OpDef& op;
  const AttributeMap& attributes;
  std::span<const Value> operands;
  std::span<const TensorType> results;
};

// `wanted` as in PlacementContext; `operands` where they are along the axis if not where their values say.
PlacementRuling AskPlacementRule(const NodeToPlace& node, const MeshAxis& axis,
                                 std::optional<Placement> wanted = std::nullopt,
                                 std::optional<std::vector<Placement>> operands = std::nullopt);

// Where the results of a node are, by its op's rule. The error names the op and the operand that is not where it must
// be.
absl::StatusOr<std::vector<PlacementMap>> PlaceResults(const OpDef& op, const AttributeMap& attributes,
                                                       std::span<const Value> operands,
                                                       std::span<const TensorType> results, const Mesh& mesh);

// Whether the written placements of a node of a placed graph are those of its op's rule.
absl::Status CheckPlacements(const Graph& graph, const Node& node);

// Whether the ranks can share the dimensions that `placements` split evenly.
bool SplitsEvenly(const Shape& shape, const PlacementMap& placements, const Mesh& mesh);

// "an all_reduce is missing", or "" where no one collective would do.
std::string MissingCollective(const Placement& from, const Placement& to);

// Moves values of a placed graph along one axis. Remembers what it made, so that two consumers share a collective.
class PlacementMover {
 public:
  // Inserts before `before`, which comes after the values that are moved; at the end if null. Without
  // `may_communicate` only what each rank can do alone is done: taking a slice of what all ranks hold.
  PlacementMover(Graph& graph, MeshAxis axis, Node* before = nullptr, bool may_communicate = false)
      : graph_(graph), axis_(std::move(axis)), before_(before), may_communicate_(may_communicate) {}

  // `value`, placed as `to` along the axis:
  //   partial(k) -> replicated   all_reduce
  //   partial(k) -> split(d)     reduce_scatter
  //   split(d)   -> replicated   all_gather
  //   split(c)   -> split(d)     all_gather, shard
  //   replicated -> split(d)     the slice alone is computed where that is cheap, else `shard` takes it
  // `consumer` is for the message where that cannot be.
  absl::StatusOr<Value> Move(Value value, const Placement& to, std::string_view consumer);
  // Whether no dimension is in the way, as one that another axis splits is for Move: ops that cut, or put together, see
  // one axis.
  bool CanMove(Value value, const Placement& to) const;

 private:
  absl::StatusOr<Value> Convert(Value value, const Placement& to, std::string_view consumer);
  // Where the producer of a replicated value needs its operands to compute the slice alone; nothing if it cannot.
  std::optional<std::vector<Placement>> OperandsOfSlice(Value value, const Placement& to) const;
  // That slice, or null.
  absl::StatusOr<Value> ComputeSlice(Value value, const Placement& to);
  absl::StatusOr<Value> Insert(std::string_view op, Value operand, AttributeMap attributes, const Placement& to);

  Graph& graph_;
  const MeshAxis axis_;
  Node* const before_;
  const bool may_communicate_;
  std::unordered_map<Value, std::vector<std::pair<Placement, Value>>, ValueHash> moved_;
};

// Puts the operands of a node that is about to be inserted where its op's rule wants them, by slices alone.
absl::Status SliceOperands(Graph& graph, const OpDef& op, const AttributeMap& attributes, std::vector<Value>& operands,
                           Node* before);

// `value`, which is to take the place of one that is placed as `to`: itself, or a slice of it. An error if the ranks
// would have to communicate.
absl::StatusOr<Value> PlacedLike(Graph& graph, Value value, const PlacementMap& to, Node* before);

}  // namespace lockstep
