// Determines the placements of a placed graph by the ops' placement rules, axis by axis, and moves values to the
// placements that a node requires. Graphs, builders and the distribute pass place nodes with it; the verifier checks
// placements with it.

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

// The result of a placement rule for one node along one axis; see PlacementContext.
struct PlacementRuleResult {
  std::vector<Placement> operands, required, results;
  bool decompose = false;
  AttributeMap decompose_with;
  std::string failure;
};

// A node that is in a placed graph or is about to be inserted. Borrows all members.
struct NodeToPlace {
  const OpDef& op;
  const AttributeMap& attributes;
  std::span<const Value> operands;
  std::span<const TensorType> results;
};

// Applies the placement rule of the node's op. `wanted` is as in PlacementContext. `operands` are the placements of the
// operands along the axis; by default those of their values.
PlacementRuleResult AskPlacementRule(const NodeToPlace& node, const MeshAxis& axis,
                                     std::optional<Placement> wanted = std::nullopt,
                                     std::optional<std::vector<Placement>> operands = std::nullopt);

// The placements of the results of a node, by its op's rule. The error names the op and the operand that is not placed
// as required.
absl::StatusOr<std::vector<PlacementMap>> PlaceResults(const OpDef& op, const AttributeMap& attributes,
                                                       std::span<const Value> operands,
                                                       std::span<const TensorType> results, const Mesh& mesh);

// Checks that the written placements of a node of a placed graph are those of its op's rule.
absl::Status CheckPlacements(const Graph& graph, const Node& node);

// True if each dimension that `placements` split can be divided evenly between the ranks.
bool SplitsEvenly(const Shape& shape, const PlacementMap& placements, const Mesh& mesh);

// "an all_reduce is missing", or "" if no single collective moves a value from `from` to `to`.
std::string MissingCollective(const Placement& from, const Placement& to);

// Moves values of a placed graph to other placements along one axis. Keeps the values that it made, so that several
// consumers share a collective.
class PlacementMover {
 public:
  // Inserts nodes before `before`, which must come after the values that are moved; at the end if null. Without
  // `may_communicate` only a move that needs no communication is done: a slice of a replicated value.
  PlacementMover(Graph& graph, MeshAxis axis, Node* before = nullptr, bool may_communicate = false)
      : graph_(graph), axis_(std::move(axis)), before_(before), may_communicate_(may_communicate) {}

  // Returns `value`, placed as `to` along the axis:
  //   partial(k) -> replicated   all_reduce
  //   partial(k) -> split(d)     reduce_scatter
  //   split(d)   -> replicated   all_gather
  //   split(c)   -> split(d)     all_gather, shard
  //   replicated -> split(d)     the producer computes only the slice if its rule allows it, else `shard`
  //   at(i)      -> at(j)        collective_permute
  //   at(i)      -> replicated   collective_broadcast
  // The error names `consumer`.
  absl::StatusOr<Value> Move(Value value, const Placement& to, std::string_view consumer);
  // Returns false if Move would split or gather a dimension that another axis splits, because these ops consider one
  // axis only. Nothing else is checked.
  bool CanMove(Value value, const Placement& to) const;

 private:
  absl::StatusOr<Value> Convert(Value value, const Placement& to, std::string_view consumer);
  // The placements that the producer of a replicated value requires of its operands to compute only the slice. Empty if
  // it cannot.
  std::optional<std::vector<Placement>> OperandsOfSlice(Value value, const Placement& to) const;
  // Computes that slice. Returns null if the producer cannot.
  absl::StatusOr<Value> ComputeSlice(Value value, const Placement& to);
  absl::StatusOr<Value> Insert(std::string_view op, Value operand, AttributeMap attributes, const Placement& to);

  Graph& graph_;
  const MeshAxis axis_;
  Node* const before_;
  const bool may_communicate_;
  std::unordered_map<Value, std::vector<std::pair<Placement, Value>>, ValueHash> moved_;
};

// Moves the operands of a node that is about to be inserted to the placements that its op's rule requires, by slices
// only.
absl::Status SliceOperands(Graph& graph, const OpDef& op, const AttributeMap& attributes, std::vector<Value>& operands,
                           Node* before);

// Returns `value`, or a slice of it, as a replacement of a value that is placed as `to`. Returns an error if the ranks
// would have to communicate.
absl::StatusOr<Value> PlacedLike(Graph& graph, Value value, const PlacementMap& to, Node* before);

}  // namespace lockstep
