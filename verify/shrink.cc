#include "verify/shrink.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/op_def.h"
#include "core/ops/scan.h"
#include "passes/optimize/dce.h"
#include "verify/factors.h"

namespace lockstep::verify {
namespace {

using Extents = std::vector<Extent>;
using Types = std::vector<TensorType>;

// A size that a node has: a dimension of an operand, or a number in an attribute.
struct Slot {
  std::optional<size_t> operand;  // none: of the attribute
  std::string attribute;
  size_t at = 0;  // the dimension, or the entry of a list
  int64_t size = 0;
  Extent extent;
  bool is_of_result = false;  // an entry of an attribute that is the dimension `at` of the result
  bool is_number = false;     // an attribute that is no list
};
using Slots = std::vector<Slot>;

// The types of the node's results if these slots have these sizes.
absl::StatusOr<Types> InferWith(const Node& node, const Slots& slots, const std::vector<int64_t>& sizes) {
  Types operands;
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

bool HasRegion(const Node& node) {
  return std::any_of(node.attributes().begin(), node.attributes().end(),
                     [](const auto& attribute) { return std::holds_alternative<Region>(attribute.second); });
}

// Positions of a part in a whole, along one dimension of a slice or pad.
struct Part {
  int64_t whole, part, offset;
  bool is_all() const { return part == whole; }
  // One of several equal parts, such as the second of three.
  bool is_share() const { return part > 1 && whole % part == 0 && offset % part == 0; }
  // The offset of the part in a whole of another size: a single element keeps its distance from the nearer end.
  int64_t OffsetIn(int64_t new_whole, int64_t new_part) const {
    if (is_all()) return 0;
    if (is_share()) return offset / part * new_part;
    return part > 1 || offset * 2 < whole ? offset : new_whole - (whole - offset);
  }
};

const std::vector<int64_t>& ListOf(const Node& node, std::string_view name) {
  return node.attr<std::vector<int64_t>>(name);
}

// Whole and part of dimension `d` of a slice or pad.
Part PartAlong(const Node& node, int64_t d) {
  if (node.Is("slice")) return {node.operand(0).shape()[d], node.type().shape[d], ListOf(node, "start")[At(d)]};
  return {node.type().shape[d], node.operand(0).shape()[d], ListOf(node, "low")[At(d)]};
}

// --- The extents of a program ----------------------------------------------------------------------------------------

class Sizes {
 public:
  // With `keeps_written`, sizes that are among the integers in constants stay.
  Sizes(const Graph& program, bool keeps_written) {
    Add(program);
    for (const auto& [value, extents] : extents_) {
      for (const Extent& extent : extents) {
        if (keeps_written && written_.contains(factors_.OldSize(extent))) factors_.Fix(extent);
      }
    }
  }

  Factors& factors() { return factors_; }
  const Extents& Of(Value value) const { return extents_.at(value); }
  const std::vector<const Node*>& nodes() const { return nodes_; }
  TensorType NewType(Value value) const {
    std::vector<int64_t> dims;
    for (const Extent& extent : Of(value)) dims.push_back(factors_.NewSize(extent));
    return {value.dtype(), Shape(std::move(dims))};
  }
  // The attributes of the node for the new sizes, but for those that hold a graph.
  AttributeMap NewAttributes(const Node& node) const;
  // True if the new sizes of the node's operands, results and attributes fit each other.
  bool Fits(const Node& node) const;
  // Fixes extents of a node that does not fit: as few as make it fit.
  void Restrict(const Node& node);

 private:
  void Add(const Graph& graph);
  void AddNode(const Node& node);
  void AddElementwise(const Node& node);
  void AddIntegers(const Tensor& value, const Extents& extents);
  void AddParts(const Node& node);
  void AddConcat(const Node& node);
  void AddScan(const Node& node);
  void AddByInference(const Node& node);
  void AddInferred(const Node& node, std::vector<Slots> sets, const Slots& stuck);
  Slots OperandSlots(const Node& node) const;
  Slots AttributeSlots(const Node& node) const;
  Extents OfOperandsAndResults(const Node& node) const;
  void New(Value value) {
    for (int64_t size : value.shape().dims()) extents_[value].push_back(factors_.New(size));
    extents_[value].resize(static_cast<size_t>(value.shape().rank()));
  }
  void UnifyAll(const Extents& a, const Extents& b) {
    for (size_t i = 0; i < a.size(); ++i) factors_.Unify(a[i], b[i]);
  }
  void FixAll(const Extents& extents) {
    for (const Extent& extent : extents) factors_.Fix(extent);
  }

  Factors factors_;
  std::unordered_map<Value, Extents, ValueHash> extents_;
  std::map<std::pair<const Node*, std::string>, std::map<size_t, Extent>> attributes_;  // of entries that may change
  std::vector<const Node*> nodes_;
  std::set<int64_t> written_;  // integers in constants
};

void Sizes::Add(const Graph& graph) {
  for (const Input& input : graph.inputs()) New(input.value);
  for (const Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.num_results(); ++i) New(const_cast<Node&>(node).result(i));
    AddNode(node);
    nodes_.push_back(&node);
  }
  for (const Result& result : graph.results()) {
    if (result.is_state) UnifyAll(Of(graph.FindInput(result.name)->value), Of(result.value));
  }
}

Extents Sizes::OfOperandsAndResults(const Node& node) const {
  Extents all;
  const auto add = [&](const Extents& extents) { all.insert(all.end(), extents.begin(), extents.end()); };
  for (Value operand : node.operands()) add(Of(operand));
  for (size_t i = 0; i < node.num_results(); ++i) add(Of(const_cast<Node&>(node).result(i)));
  return all;
}

void Sizes::AddNode(const Node& node) {
  const Extents all = OfOperandsAndResults(node);
  if (node.op().has_trait(kElementwise)) return AddElementwise(node);
  if (node.Is("slice") || node.Is("pad")) return AddParts(node);
  if (node.Is("concat")) return AddConcat(node);
  if (node.Is("scan")) return AddScan(node);
  if (HasRegion(node)) return FixAll(all);
  if (node.Is("constant")) {
    const Tensor& value = node.attr<Tensor>("value");
    if (IsInteger(value.dtype()) && value.dtype() != DType::kBool) AddIntegers(value, all);
  } else if (node.Is("reshape")) {
    const auto product = [&](Value value) {
      Extent factors;
      for (const Extent& extent : Of(value)) factors.insert(factors.end(), extent.begin(), extent.end());
      return factors;
    };
    factors_.Unify(product(node.operand(0)), product(const_cast<Node&>(node).result()));
  } else {
    AddByInference(node);
  }
}

void Sizes::AddElementwise(const Node& node) {
  for (Value operand : node.operands()) {
    if (operand.shape() == node.type().shape) UnifyAll(Of(operand), Of(const_cast<Node&>(node).result()));
  }
}

// Positions may be computed from sizes in constants, such as the length of a sentence.
void Sizes::AddIntegers(const Tensor& value, const Extents& extents) {
  constexpr int64_t kMostSizes = 16;
  if (!value.AllElementsEqual()) FixAll(extents);
  for (int64_t i = 0; i < std::min(value.num_elements(), kMostSizes); ++i)
    written_.insert(static_cast<int64_t>(value.At(i)));
}

void Sizes::AddParts(const Node& node) {
  const Extents &x = Of(node.operand(0)), &y = Of(const_cast<Node&>(node).result());
  for (int64_t d = 0; d < node.type().shape.rank(); ++d) {
    const Extent &whole = node.Is("slice") ? x[At(d)] : y[At(d)], &part = node.Is("slice") ? y[At(d)] : x[At(d)];
    const Part along = PartAlong(node, d);
    const bool is_dense = node.Is("pad") || ListOf(node, "stride")[At(d)] == 1;
    if (along.is_all()) {
      factors_.Unify(whole, part);
    } else if (is_dense && along.is_share()) {
      Extent shares = factors_.Fixed(along.whole / along.part);
      shares.insert(shares.end(), part.begin(), part.end());
      factors_.Unify(whole, shares);
    } else if (!is_dense || along.part != 1) {
      factors_.Fix(whole);
      factors_.Fix(part);
    }
  }
}

void Sizes::AddConcat(const Node& node) {
  const size_t dim = At(node.attr<int64_t>("dim"));
  Extents y = Of(const_cast<Node&>(node).result());
  const Extent whole = std::exchange(y[dim], {});
  Extents parts;
  for (Value operand : node.operands()) {
    Extents x = Of(operand);
    parts.push_back(std::exchange(x[dim], {}));
    UnifyAll(x, y);
  }
  const auto size = [this](const Extent& extent) { return factors_.OldSize(extent); };
  const int64_t first = size(parts[0]);
  if (std::all_of(parts.begin(), parts.end(), [&](const Extent& part) { return size(part) == first; })) {
    for (const Extent& part : parts) factors_.Unify(parts[0], part);
    Extent shares = factors_.Fixed(static_cast<int64_t>(parts.size()));
    shares.insert(shares.end(), parts[0].begin(), parts[0].end());
    return factors_.Unify(whole, shares);
  }
  const auto sum = [this, parts] {
    return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                           [this](int64_t total, const Extent& part) { return total + factors_.NewSize(part); });
  };
  factors_.Follow(whole, parts, sum);
}

void Sizes::AddScan(const Node& node) {
  const ScanForm form(node);
  Add(*form.body);
  const Extent length = factors_.New(form.length);
  attributes_[{&node, "length"}] = {{0, length}};
  const auto stacked = [&](Extents inner, bool is_stacked) {
    if (is_stacked) inner.insert(inner.begin(), length);
    return inner;
  };
  for (size_t i = 0; i < form.num_inputs(); ++i)
    UnifyAll(Of(node.operand(i)), stacked(Of(form.body->inputs()[i].value), form.is_scanned(i)));
  for (size_t i = 0; i < form.num_results(); ++i) {
    const Extents& inner = Of(form.body->results()[i].value);
    UnifyAll(Of(const_cast<Node&>(node).result(i)), stacked(inner, form.is_stacked(i)));
    if (i < form.carried) UnifyAll(Of(form.body->inputs()[i].value), inner);
  }
}

// --- By inference ----------------------------------------------------------------------------------------------------

Slots Sizes::OperandSlots(const Node& node) const {
  Slots slots;
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const Extents& extents = Of(node.operand(i));
    for (size_t d = 0; d < extents.size(); ++d) {
      const int64_t size = node.operand(i).shape().dims()[d];
      if (size > 1) slots.push_back({i, "", d, size, extents[d]});
    }
  }
  return slots;
}

Slots Sizes::AttributeSlots(const Node& node) const {
  Slots slots;
  for (const OpDef::AttributeDef& def : node.op().attribute_defs()) {
    const Attribute& value = node.attributes().at(def.name);
    const auto* const list = std::get_if<std::vector<int64_t>>(&value);
    const auto* const number = std::get_if<int64_t>(&value);
    const std::vector<int64_t> sizes = list ? *list : number ? std::vector{*number} : std::vector<int64_t>{};
    for (size_t at = 0; at < sizes.size(); ++at) {
      if (sizes[at] < 2) continue;
      const Extent extent = def.is_per_dim ? Of(const_cast<Node&>(node).result())[at] : Extent();
      slots.push_back({{}, def.name, at, sizes[at], extent, def.is_per_dim, number != nullptr});
    }
  }
  return slots;
}

// The sets of slots, beginning with `slot`, that may have to change together: in order of preference.
// Slots of different sizes do so if a number in an attribute is their ratio, such as the groups of a convolution.
std::vector<Slots> SetsWith(const Slot& slot, const Slots& operands, const Slots& attributes) {
  std::vector<Slots> sets = {{slot}};
  Slots same_dim = {slot}, all = {slot};
  std::vector<Slots> pairs, pairs_of_attributes, proportional;
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

// The types of the results if all slots have twice their sizes.
absl::StatusOr<Types> InferDoubled(const Node& node, const Slots& slots) {
  std::vector<int64_t> sizes;
  for (const Slot& slot : slots) sizes.push_back(slot.size * 2);
  return InferWith(node, slots, sizes);
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

void Sizes::AddByInference(const Node& node) {
  const Slots operands = OperandSlots(node), attributes = AttributeSlots(node);
  std::vector<Slots> sets;
  Slots stuck;
  for (const Slot& slot : operands) {
    if (std::any_of(sets.begin(), sets.end(), [&](const Slots& set) { return Contains(set, slot); })) continue;
    const std::vector<Slots> candidates = SetsWith(slot, operands, attributes);
    const auto found = std::find_if(candidates.begin(), candidates.end(),
                                    [&](const Slots& set) { return InferDoubled(node, set).ok(); });
    if (found != candidates.end()) sets.push_back(WithoutOthers(node, *found));
    else stuck.push_back(slot);
  }
  for (const Slot& slot : attributes) {
    if (slot.is_of_result) continue;
    if (std::any_of(sets.begin(), sets.end(), [&](const Slots& set) { return Contains(set, slot); })) continue;
    const absl::StatusOr<Types> types = InferDoubled(node, {slot});
    if (!types.ok()) continue;
    for (size_t i = 0; i < types->size(); ++i) {
      for (int64_t d = 0; d < node.type(i).shape.rank(); ++d) {
        // Other numbers, such as a stride, do not become twice a dimension that was as large.
        if (node.type(i).shape[d] == slot.size && (*types)[i].shape[d] == 2 * slot.size) sets.push_back({slot});
      }
    }
  }
  AddInferred(node, std::move(sets), stuck);
}

// `sets` can change independently of each other, and `stuck` only in a way that is not known.
void Sizes::AddInferred(const Node& node, std::vector<Slots> sets, const Slots& stuck) {
  for (Slots& set : sets) {
    for (Slot& slot : set) {
      if (!slot.operand && !slot.is_of_result) slot.extent = factors_.New(slot.size);
      if (!slot.operand) attributes_[{&node, slot.attribute}][slot.at] = slot.extent;
      Extent ratio = factors_.Fixed(slot.size / set[0].size);
      ratio.insert(ratio.end(), set[0].extent.begin(), set[0].extent.end());
      factors_.Unify(slot.extent, ratio);
    }
  }
  std::vector<Types> doubled;
  for (const Slots& set : sets) doubled.push_back(*InferDoubled(node, set));
  for (size_t i = 0; i < node.num_results(); ++i) {
    const Extents& extents = Of(const_cast<Node&>(node).result(i));
    for (size_t d = 0; d < extents.size(); ++d) {
      const int64_t size = node.type(i).shape.dims()[d];
      if (size < 2) continue;
      Slots sources;
      bool is_product = true;
      size_t last = 0, count = 0;
      for (size_t s = 0; s < sets.size(); ++s) {
        const int64_t changed = doubled[s][i].shape.dims()[d];
        if (changed == size) continue;
        is_product = is_product && changed == 2 * size && size % sets[s][0].size == 0;
        sources.insert(sources.end(), sets[s].begin(), sets[s].end());
        last = s;
        ++count;
      }
      if (count == 1 && is_product) {
        Extent product = factors_.Fixed(size / sets[last][0].size);
        product.insert(product.end(), sets[last][0].extent.begin(), sets[last][0].extent.end());
        factors_.Unify(extents[d], product);
        continue;
      }
      // Of a window and what it slides over, the window stays.
      int64_t largest = 0;
      for (const Slot& source : sources) largest = std::max(largest, source.size);
      for (const Slot& source : sources) {
        if (source.size < largest) factors_.Fix(source.extent);
      }
      const bool is_of_attribute = std::any_of(node.op().attribute_defs().begin(), node.op().attribute_defs().end(),
                                               [](const auto& def) { return def.is_per_dim; });
      if (is_of_attribute && i == 0) continue;
      if (count == 0) sources = stuck;
      Extents source_extents;
      for (const Slot& source : sources) source_extents.push_back(source.extent);
      if (sources.empty()) factors_.Fix(extents[d]);
      else
        factors_.Follow(extents[d], source_extents, [this, &node, sources, i, d] {
          std::vector<int64_t> sizes;
          for (const Slot& source : sources) sizes.push_back(factors_.NewSize(source.extent));
          const absl::StatusOr<Types> types = InferWith(node, sources, sizes);
          return types.ok() ? (*types)[i].shape.dims()[d] : 0;
        });
    }
  }
}

// --- New sizes -------------------------------------------------------------------------------------------------------

// The first elements of `value` along each dimension. Requires that no dimension is larger than that of `value`.
Tensor FirstElements(const Tensor& value, const Shape& shape) {
  Tensor first({value.dtype(), shape});
  const std::vector<int64_t> strides = value.shape().Strides();
  const size_t width = SizeOf(value.dtype());
  std::byte* const out = first.mutable_bytes();
  std::vector<int64_t> index(At(shape.rank()));
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    int64_t from = 0;
    for (size_t d = 0; d < index.size(); ++d) from += index[d] * strides[d];
    std::copy_n(value.bytes() + At(from) * width, width, out + At(i) * width);
    for (size_t d = index.size(); d-- > 0 && ++index[d] == shape.dims()[d];) index[d] = 0;
  }
  return first;
}

bool IsWithin(const Shape& inner, const Shape& outer) {
  for (int64_t d = 0; d < inner.rank(); ++d) {
    if (inner[d] > outer[d]) return false;
  }
  return true;
}

AttributeMap Sizes::NewAttributes(const Node& node) const {
  AttributeMap attributes = node.attributes();
  const TensorType result = NewType(const_cast<Node&>(node).result());
  const auto list = [&](std::string_view name) -> std::vector<int64_t>& {
    return std::get<std::vector<int64_t>>(attributes.find(name)->second);
  };
  if (node.Is("slice") || node.Is("pad")) {
    const Shape operand = NewType(node.operand(0)).shape;
    for (int64_t d = 0; d < operand.rank(); ++d) {
      const Part along = PartAlong(node, d);
      if (node.Is("pad")) {
        if (along.part > 1 && !along.is_share()) continue;
        list("low")[At(d)] = along.OffsetIn(result.shape[d], operand[d]);
        list("high")[At(d)] = result.shape[d] - operand[d] - list("low")[At(d)];
      } else if (along.is_all() || along.is_share() || along.part == 1) {
        list("start")[At(d)] = along.OffsetIn(operand[d], result.shape[d]);
        list("limit")[At(d)] = list("start")[At(d)] + result.shape[d];
      }
    }
    return attributes;
  }
  if (node.Is("constant")) {
    const Tensor& value = node.attr<Tensor>("value");
    if (IsWithin(result.shape, value.shape())) attributes.find("value")->second = FirstElements(value, result.shape);
    return attributes;
  }
  for (const OpDef::AttributeDef& def : node.op().attribute_defs()) {
    if (def.is_per_dim) list(def.name) = result.shape.dims();
    const auto changed = attributes_.find({&node, def.name});
    if (changed == attributes_.end()) continue;
    for (const auto& [at, extent] : changed->second) {
      if (std::holds_alternative<int64_t>(attributes.at(def.name))) attributes.at(def.name) = factors_.NewSize(extent);
      else list(def.name)[at] = factors_.NewSize(extent);
    }
  }
  return attributes;
}

bool Sizes::Fits(const Node& node) const {
  if (HasRegion(node)) return true;  // the nodes inside are others
  Types operands, expected;
  for (Value operand : node.operands()) operands.push_back(NewType(operand));
  for (size_t i = 0; i < node.num_results(); ++i) expected.push_back(NewType(const_cast<Node&>(node).result(i)));
  const absl::StatusOr<Types> found = node.op().InferTypes(operands, NewAttributes(node));
  return found.ok() && *found == expected;
}

void Sizes::Restrict(const Node& node) {
  Extents all = OfOperandsAndResults(node);
  std::set<int> factors;
  for (const Extent& extent : all) {
    for (int factor : factors_.Free(extent)) factors.insert(factor);
  }
  Extent kept(factors.begin(), factors.end());
  factors_.Restore(kept);
  if (!Fits(node)) {
    factors_.Restore({});
    return FixAll(all);
  }
  std::sort(kept.begin(), kept.end(), [&](int a, int b) { return factors_.OldSize({a}) > factors_.OldSize({b}); });
  for (int factor : Extent(kept)) {
    std::erase(kept, factor);
    factors_.Restore(kept);
    if (!Fits(node)) kept.push_back(factor);
  }
  factors_.Restore({});
  factors_.Fix(kept);
}

// --- The new program -------------------------------------------------------------------------------------------------

absl::StatusOr<Graph> WithNewSizes(const Graph& from, const Sizes& sizes) {
  Graph to(from.name());
  ValueMap map;
  for (const Input& input : from.inputs()) {
    ASSIGN_OR_RETURN(map[input.value], to.AddInputLike(input, sizes.NewType(input.value), input.placements()));
  }
  for (const Node& node : from.nodes()) {
    NodeSpec spec = CopyOf(node, map);
    spec.attributes = sizes.NewAttributes(node);
    for (auto& [name, value] : spec.attributes) {
      const auto* const region = std::get_if<Region>(&value);
      if (region == nullptr || !node.Is("scan")) continue;
      ASSIGN_OR_RETURN(Graph body, WithNewSizes(region->graph(), sizes));
      value = Region(std::move(body));
    }
    ASSIGN_OR_RETURN(Node* const copy, to.Insert(std::move(spec)));
    for (size_t i = 0; i < node.num_results(); ++i) map[const_cast<Node&>(node).result(i)] = copy->result(i);
  }
  for (const Result& result : from.results()) {
    const Value value = map.at(result.value);
    RETURN_IF_ERROR(result.is_state ? to.AddStateResult(result.name, value, result.placements)
                                    : to.AddResult(result.name, value, result.placements));
  }
  return to;
}

std::vector<std::string> Changes(const Graph& program, const Sizes& sizes) {
  constexpr size_t kMostNames = 4;
  std::map<std::pair<int64_t, int64_t>, std::map<size_t, std::vector<std::string>>> changed;  // names by dimension
  for (const Input& input : program.inputs()) {
    const Shape now = sizes.NewType(input.value).shape;
    for (int64_t d = 0; d < now.rank(); ++d) {
      if (now[d] != input.value.shape()[d]) changed[{input.value.shape()[d], now[d]}][At(d)].push_back(input.name());
    }
  }
  std::vector<std::string> changes;
  for (const auto& [pair, by_dim] : changed) {
    std::string where;
    for (auto [dim, names] : by_dim) {
      if (const size_t count = names.size(); count > kMostNames) {
        names.resize(kMostNames - 1);
        names.push_back(std::to_string(count - names.size()) + " more");
      }
      where += (where.empty() ? "" : "; ") + ("dim " + std::to_string(dim)) + " of ";
      for (size_t i = 0; i < names.size(); ++i) where += (i > 0 ? ", " : "") + names[i];
    }
    changes.push_back(std::to_string(pair.first) + " -> " + std::to_string(pair.second) + " (" + where + ")");
  }
  return changes;
}

}  // namespace

Shrunk ShrinkDimensions(const Graph& given, int64_t ranks, bool keeps_written) {
  Graph program = given.Clone();
  passes::RemoveDeadNodes(program);  // sizes of what is not used follow from nothing
  Sizes sizes(program, keeps_written);
  std::vector<Extent> batches;
  for (const Input& input : program.inputs()) {
    for (const auto& [axis, placement] : input.placements()) {
      if (placement.is_split() && input.is_data()) batches.push_back(sizes.Of(input.value)[At(placement.dim())]);
    }
  }
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    sizes.factors().ChooseSizes(ranks, batches);
    for (const Node* node : sizes.nodes()) {
      if (sizes.Fits(*node)) continue;
      sizes.Restrict(*node);
      has_changed = true;
    }
  }
  absl::StatusOr<Graph> shrunk = WithNewSizes(program, sizes);
  if (!shrunk.ok()) return {given.Clone(), {}};
  return {*std::move(shrunk), Changes(program, sizes)};
}

double CostOfRun(const Graph& program) {
  double cost = 0;
  for (const Node& node : program.nodes()) {
    if (node.Is("scan")) cost += static_cast<double>(ScanForm(node).length) * CostOfRun(*ScanForm(node).body);
    else cost += FlopsOf(node);
    for (size_t i = 0; i < node.num_results(); ++i) cost += static_cast<double>(node.type(i).num_elements());
  }
  return cost;
}

}  // namespace lockstep::verify
