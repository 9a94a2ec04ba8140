#include "test/random_graph/op_nodes.h"

#include <algorithm>

#include "core/op_def.h"
#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

using Rows = std::vector<OpCase>;

// True if the operands of the row are tame, like all values of random graphs.
bool IsTameRow(const OpCase& row) {
  return std::all_of(row.operands.begin(), row.operands.end(), [](const CaseOperand& operand) {
    if (operand.value) return IsTame(*operand.value);
    return operand.type.num_elements() <= kMostElements && -operand.low < kTooLarge && operand.high < kTooLarge;
  });
}

// The accepted rows of each op that is drawn, in the order of the ops. `whole`: only ops that are neither elementwise
// nor movements, reductions or generators; else only the others.
std::vector<Rows> RowsOfOps(bool whole) {
  std::vector<Rows> all;
  for (const OpDef* op : AllOps()) {
    if (!WhyNotDrawn(*op).empty() || (op->has_trait(kOpaque) || op->has_trait(kOptimizer)) != whole) continue;
    Rows rows;
    for (const OpCase& row : AllOpCases()) {
      if (row.op == op->name() && row.refused.empty() && IsTameRow(row)) rows.push_back(row);
    }
    if (!rows.empty()) all.push_back(std::move(rows));
  }
  return all;
}

// Adapts the `shape` of an operand when the first operand's shape changes from `from` to `to`: extents that are equal
// in the row stay equal.
Shape Adapted(const Shape& shape, const Shape& from, const Shape& to) {
  if (shape == from) return to;
  std::vector<int64_t> extents = shape.dims();
  for (size_t i = 0; i < extents.size(); ++i) {
    const auto same_place = static_cast<int64_t>(i);
    if (from.has_dim(same_place) && from[same_place] == extents[i]) {
      extents[i] = to[same_place];
      continue;
    }
    const auto found = std::find(from.dims().begin(), from.dims().end(), extents[i]);
    if (found != from.dims().end()) extents[i] = to[found - from.dims().begin()];
  }
  return Shape(extents);
}

bool Accepts(const OpCase& row) {
  const OpDef& op = GetOp(row.op);
  const absl::StatusOr<AttributeMap> attributes = op.CompleteAttributes(row.attributes);
  std::vector<TensorType> types;
  for (const CaseOperand& operand : row.operands) types.push_back(operand.type);
  return attributes.ok() && op.InferTypes(types, *attributes).ok() && IsTameRow(row);
}

// Returns the row with shapes adapted to this shape of the first operand, or unchanged if the op does not accept them.
OpCase AdaptedTo(const OpCase& row, const Shape& shape) {
  OpCase adapted = row;
  for (CaseOperand& operand : adapted.operands) {
    if (operand.value) return row;
    operand.type.shape = Adapted(operand.type.shape, row.operands[0].type.shape, shape);
  }
  return Accepts(adapted) ? adapted : row;
}

// True if the elements of `value` are in the range of the row's operand. The default range of floats allows any
// elements.
bool IsInRange(const Draft& draft, Value value, const CaseOperand& operand) {
  static const CaseOperand anywhere = F32({});
  if (operand.value) return false;
  if (IsFloat(operand.type.dtype) && operand.low == anywhere.low && operand.high == anywhere.high) return true;
  const Tensor& tensor = draft.TensorOf(value);
  return SmallestOf(tensor) >= operand.low && LargestOf(tensor) <= operand.high;
}

// A value of this dtype and rank, cut and padded to the shape; null if there is none.
Value Fitted(Draft& draft, const TensorType& type) {
  const Value value = draft.Pick([&](Value v) {
    return v.dtype() == type.dtype && v.shape().rank() == type.shape.rank() && v.type().num_elements() > 0;
  });
  if (!value || type.num_elements() == 0) return Value();
  Ints none, limit, missing;
  for (int64_t i = 0; i < type.shape.rank(); ++i) {
    none.push_back(0);
    limit.push_back(std::min(value.shape()[i], type.shape[i]));
    missing.push_back(type.shape[i] - limit.back());
  }
  Value fitted = value.shape().dims() == limit ? value : draft.b().Slice(value, none, limit);
  if (fitted.type() != type) fitted = draft.b().Pad(fitted, none, missing);
  draft.KeepSteadyNodes();
  LOCKSTEP_CHECK(draft.Has(fitted)) << "parts of a value that is tame, and zeros, are tame";
  return fitted;
}

Value OperandOf(Draft& draft, const CaseOperand& operand) {
  Random& random = draft.random();
  if (random.Chance(60)) {
    const Value value = draft.Pick([&](Value v) { return v.type() == operand.type && IsInRange(draft, v, operand); });
    if (value) return value;
  }
  if (random.Chance(40)) {
    const Value value = Fitted(draft, operand.type);
    if (value && IsInRange(draft, value, operand)) return value;
  }
  return draft.AddInput(operand.value ? *operand.value : draft.RandomTensor(operand.type, operand.low, operand.high));
}

// An optimizer's variable or state, which must not be partial: a state input, often a new one.
Value VariableOf(Draft& draft, const CaseOperand& operand) {
  const Value value = draft.Pick([&](Value v) {
    const Input* input = draft.graph().FindInput(v.name());
    return input && input->is_state && v.type() == operand.type && IsInRange(draft, v, operand);
  });
  if (value && draft.random().Chance(50)) return value;
  return draft.AddInput(draft.RandomTensor(operand.type, operand.low, operand.high), /*is_state=*/true,
                        draft.RandomPlacements(operand.type.shape, /*is_state=*/true));
}

// A new input that is split along `data`.
Value BatchOf(Draft& draft, const CaseOperand& operand) {
  PlacementMap placements = draft.RandomPlacements(operand.type.shape, /*is_state=*/false);
  if (!placements.contains("data")) placements = {{"data", Placement::Split(0)}};
  return draft.AddInput(draft.RandomTensor(operand.type, operand.low, operand.high), /*is_state=*/false, placements);
}

bool HasStatistics(const OpDef& op) { return op.FindAttribute("statistics") != nullptr; }

// Gives a batch normalisation statistics per rank, if it normalises the batch of an input, so that each rank's part is
// known. `groups` then counts those of all ranks. Returns false if that is not possible.
bool TakeStatisticsOfRanks(Draft& draft, const std::vector<Value>& operands, AttributeMap& attributes) {
  const OpDef& inputs = InputOp();
  const int64_t ranks = draft.options().data;
  if (!draft.random().Chance(70)) return false;
  for (Value operand : operands) {
    if (operand.shape() != operands[0].shape()) continue;
    const bool is_batch = &operand.node->op() == &inputs && operand.placement("data").is_split(0);
    if (ranks > 0 && (!is_batch || operand.placement("model").is_split(0))) return false;
  }
  const auto given = attributes.find("groups");
  const int64_t groups =
      (given == attributes.end() ? 1 : std::get<int64_t>(given->second)) * std::max<int64_t>(ranks, 1);
  const Shape& x = operands[0].shape();
  if (x[0] % groups != 0 || x.num_elements() < 2 * groups * x[1]) return false;  // at least two values for a variance
  attributes["groups"] = groups;
  return true;
}

}  // namespace

std::string WhyNotDrawn(const OpDef& op) {
  if (op.name() == "random_bits") return "its results are arbitrary 32-bit numbers";
  for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
    if (std::holds_alternative<Region>(attribute.example)) return "it has a region, whose inputs are its operands";
    if (attribute.name == "axis") return "it names a mesh axis: distribute inserts it";
  }
  return "";
}

void AddNodeOfRow(Draft& draft) {
  static const std::vector<Rows> whole = RowsOfOps(true), others = RowsOfOps(false);
  Random& random = draft.random();
  OpCase row = random.Of(random.Of(random.Chance(80) ? whole : others));
  std::vector<Value> operands;
  const OpDef& op = GetOp(row.op);
  const bool is_optimizer = op.has_trait(kOptimizer);
  const bool of_batch = HasStatistics(op) && draft.options().data > 0 && random.Chance(50) &&
                        row.operands[0].type.shape[0] == draft.options().batch;
  if (!is_optimizer && !of_batch && !row.operands.empty() && random.Chance(60)) {
    const CaseOperand& first = row.operands[0];
    const Value x = draft.Pick([&](Value value) {
      return value.dtype() == first.type.dtype && value.shape().rank() == first.type.shape.rank() &&
             IsInRange(draft, value, first);
    });
    if (x) row = AdaptedTo(row, x.shape());
    if (x && x.type() == row.operands[0].type) operands.push_back(x);
  }
  while (operands.size() < row.operands.size()) {
    const CaseOperand& operand = row.operands[operands.size()];
    const bool is_variable = is_optimizer && operands.size() < GradientOperand(op);
    if (of_batch && operand.type == row.operands[0].type) operands.push_back(BatchOf(draft, operand));
    else operands.push_back(is_variable ? VariableOf(draft, operand) : OperandOf(draft, operand));
  }
  const bool of_ranks = HasStatistics(op) && TakeStatisticsOfRanks(draft, operands, row.attributes);
  const std::vector<Value> results = draft.b().Ops(row.op, operands, row.attributes);
  draft.KeepSteadyNodes();
  if (results.empty() || !draft.Has(results[0])) return;
  if (of_ranks) draft.SetOfRanks(results[0].node);
  for (size_t i = 0; is_optimizer && i < results.size(); ++i) draft.SetNext(operands[i], results[i]);
}

void AddGradient(Draft& draft) {
  std::vector<Node*> nodes;
  for (Node& node : draft.graph().nodes()) {
    const bool has_floats = std::any_of(node.operands().begin(), node.operands().end(),
                                        [](Value operand) { return IsFloat(operand.dtype()); });
    if (node.op().vjp() && has_floats && IsFloat(node.type().dtype)) nodes.push_back(&node);
  }
  if (nodes.empty()) return;
  Node& node = *draft.random().Of(nodes);
  const bool of_ranks = draft.IsOfRanks(&node);
  std::vector<Value> grads(node.num_results());
  if (of_ranks) grads[0] = draft.AddInput(draft.RandomTensor(node.type(), -2, 2), false, node.operand(0).placements());
  else grads[0] = OperandOf(draft, CaseOperand(node.type()));
  std::vector<std::vector<Value>> contributions(node.operands().size());
  Node& last = draft.graph().nodes().back();
  VjpContext context(node, grads, draft.b(), contributions);
  node.op().vjp()(context);
  draft.KeepSteadyNodes();
  if (!of_ranks) return;
  for (auto it = draft.graph().nodes().rbegin(); &*it != &last; ++it) {
    if (it->attributes().contains("statistics")) draft.SetOfRanks(&*it);
  }
}

}  // namespace lockstep
