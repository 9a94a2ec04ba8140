#include "verify/size_sets.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/op_def.h"

namespace lockstep::verify {
namespace {

Slots OperandSlots(const Node& node) {
  Slots slots;
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const std::vector<int64_t>& sizes = node.operand(i).shape().dims();
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] > 1) slots.push_back({i, "", d, sizes[d]});
    }
  }
  return slots;
}

Slots AttributeSlots(const Node& node) {
  Slots slots;
  for (const OpDef::AttributeDef& def : node.op().attribute_defs()) {
    const Attribute& value = node.attributes().at(def.name);
    const auto* const list = std::get_if<std::vector<int64_t>>(&value);
    const auto* const number = std::get_if<int64_t>(&value);
    const std::vector<int64_t> sizes = list ? *list : number ? std::vector{*number} : std::vector<int64_t>{};
    for (size_t at = 0; at < sizes.size(); ++at) {
      if (sizes[at] > 1) slots.push_back({{}, def.name, at, sizes[at], def.is_per_dim, number != nullptr});
    }
  }
  return slots;
}

// The sets of slots, beginning with `slot`, that may have to change together: in order of preference.
// Slots of different sizes do so if a number in an attribute is their ratio, such as the groups of a convolution.
std::vector<Slots> SetsWith(const Slot& slot, const Slots& operands, const Slots& attributes) {
  std::vector<Slots> sets = {{slot}};
  Slots same_dim = {slot}, all = {slot};
  std::vector<Slots> pairs, proportional;
  for (const Slot& other : operands) {
    if (other.operand == slot.operand && other.at == slot.at) continue;
    if (other.size == slot.size) {
      pairs.push_back({slot, other});
      all.push_back(other);
      if (other.at == slot.at) same_dim.push_back(other);
    } else if (std::any_of(attributes.begin(), attributes.end(), [&](const Slot& ratio) {
                 return ratio.is_number && other.size == slot.size * ratio.size;
               })) {
      proportional.push_back({slot, other});
    }
  }
  sets.push_back(same_dim);
  sets.insert(sets.end(), pairs.begin(), pairs.end());
  sets.push_back(all);
  for (const Slot& other : attributes) {
    if (other.size != slot.size) continue;
    sets.push_back({slot, other});
    all.push_back(other);
  }
  sets.push_back(all);
  sets.insert(sets.end(), proportional.begin(), proportional.end());
  return sets;
}

// Removes slots from a set that can change together where it still can without them: the same dimension of all operands
// of as many dimensions at once. So a batch that is as large as the channels is no part of their set.
Slots WithoutOthers(const Node& node, Slots set) {
  const auto group = [&](const Slot& slot) {
    return std::pair(slot.operand ? node.operand(*slot.operand).shape().rank() : -1, slot.at);
  };
  std::set<std::pair<int64_t, size_t>> groups;
  for (const Slot& slot : set) groups.insert(group(slot));
  groups.erase(group(set[0]));
  for (const auto& each : groups) {
    Slots fewer = set;
    std::erase_if(fewer, [&](const Slot& slot) { return group(slot) == each; });
    if (InferDoubled(node, fewer).ok()) set = std::move(fewer);
  }
  return set;
}

bool Contains(const Slots& slots, const Slot& slot) {
  return std::any_of(slots.begin(), slots.end(), [&](const Slot& each) {
    return each.operand == slot.operand && each.attribute == slot.attribute && each.at == slot.at;
  });
}

bool Contains(const std::vector<Slots>& sets, const Slot& slot) {
  return std::any_of(sets.begin(), sets.end(), [&](const Slots& set) { return Contains(set, slot); });
}

// True if a dimension of a result that is as large as an attribute's number becomes twice as large with it. Other
// numbers, such as a stride, do not have such a dimension.
bool IsSizeOfResult(const Node& node, const Slot& slot) {
  const absl::StatusOr<std::vector<TensorType>> types = InferDoubled(node, {slot});
  if (!types.ok()) return false;
  for (size_t i = 0; i < types->size(); ++i) {
    for (int64_t d = 0; d < node.type(i).shape.rank(); ++d) {
      if (node.type(i).shape[d] == slot.size && (*types)[i].shape[d] == 2 * slot.size) return true;
    }
  }
  return false;
}

}  // namespace

SizeSets SizeSetsOf(const Node& node) {
  const Slots operands = OperandSlots(node), attributes = AttributeSlots(node);
  SizeSets found;
  for (const Slot& slot : operands) {
    if (Contains(found.sets, slot)) continue;
    const std::vector<Slots> candidates = SetsWith(slot, operands, attributes);
    const auto set = std::find_if(candidates.begin(), candidates.end(),
                                  [&](const Slots& each) { return InferDoubled(node, each).ok(); });
    if (set != candidates.end()) found.sets.push_back(WithoutOthers(node, *set));
    else found.stuck.push_back(slot);
  }
  for (const Slot& slot : attributes) {
    if (!slot.is_of_result && !Contains(found.sets, slot) && IsSizeOfResult(node, slot)) found.sets.push_back({slot});
  }
  return found;
}

absl::StatusOr<std::vector<TensorType>> InferWith(const Node& node, const Slots& slots,
                                                  const std::vector<int64_t>& sizes) {
  std::vector<TensorType> operands;
  for (Value operand : node.operands()) operands.push_back(operand.type());
  AttributeMap attributes = node.attributes();
  for (size_t i = 0; i < slots.size(); ++i) {
    const Slot& slot = slots[i];
    if (slot.operand) {
      Shape& shape = operands[*slot.operand].shape;
      shape = shape.WithDim(static_cast<int64_t>(slot.at), sizes[i]);
    } else if (auto* const list = std::get_if<std::vector<int64_t>>(&attributes.at(slot.attribute))) {
      (*list)[slot.at] = sizes[i];
    } else {
      attributes.at(slot.attribute) = sizes[i];
    }
  }
  return node.op().InferTypes(operands, attributes);
}

absl::StatusOr<std::vector<TensorType>> InferDoubled(const Node& node, const Slots& slots) {
  std::vector<int64_t> sizes;
  for (const Slot& slot : slots) sizes.push_back(slot.size * 2);
  return InferWith(node, slots, sizes);
}

}  // namespace lockstep::verify
