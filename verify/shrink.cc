#include "verify/shrink.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/op_def.h"
#include "core/ops/scan.h"
#include "passes/optimize/dce.h"
#include "verify/factors.h"
#include "verify/size_sets.h"

namespace lockstep::verify {
namespace {

using Extents = std::vector<Extent>;
using Types = std::vector<TensorType>;

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
  // Fixes extents of a node that does not fit: as few as make it fit. Returns false if all are fixed already.
  bool Restrict(const Node& node);

 private:
  void Add(const Graph& graph);
  void AddNode(const Node& node);
  void AddElementwise(const Node& node);
  void AddIntegers(const Tensor& value, const Extents& extents);
  void AddParts(const Node& node);
  void AddConcat(const Node& node);
  void AddScan(const Node& node);
  void AddByInference(const Node& node);
  // Adds dimension `d` of result `i`. `doubled` has the types of the results if a set doubles.
  void AddInferred(const Node& node, size_t i, size_t d, const SizeSets& found, const std::vector<Types>& doubled);
  void FixWindows(const Node& node, const Slots& sources);
  void FollowByInference(const Node& node, size_t i, size_t d, const Slots& sources);
  const Extent& ExtentOf(const Node& node, const Slot& slot) const;
  Extents OfOperandsAndResults(const Node& node) const;
  void New(Value value) {
    for (int64_t size : value.shape().dims()) extents_[value].push_back(factors_.New(size));
    extents_[value].resize(static_cast<size_t>(value.shape().rank()));
  }
  void UnifyAll(const Extents& a, const Extents& b) {
    for (size_t i = 0; i < a.size(); ++i) factors_.Unify(a[i], b[i]);
  }
  void UnifyMultiple(const Extent& whole, int64_t times, const Extent& part) {
    Extent product = factors_.Fixed(times);
    product.insert(product.end(), part.begin(), part.end());
    factors_.Unify(whole, product);
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
      UnifyMultiple(whole, along.whole / along.part, part);
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
    return UnifyMultiple(whole, static_cast<int64_t>(parts.size()), parts[0]);
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

void Sizes::AddByInference(const Node& node) {
  const SizeSets found = SizeSetsOf(node);
  std::vector<Types> doubled;
  for (const Slots& set : found.sets) {
    for (const Slot& slot : set) {
      if (!slot.operand) {
        attributes_[{&node, slot.attribute}][slot.at] =
            slot.is_of_result ? Of(const_cast<Node&>(node).result())[slot.at] : factors_.New(slot.size);
      }
      UnifyMultiple(ExtentOf(node, slot), slot.size / set[0].size, ExtentOf(node, set[0]));
    }
    doubled.push_back(*InferDoubled(node, set));
  }
  for (size_t i = 0; i < node.num_results(); ++i) {
    for (size_t d = 0; d < node.type(i).shape.dims().size(); ++d) {
      if (node.type(i).shape.dims()[d] > 1) AddInferred(node, i, d, found, doubled);
    }
  }
}

const Extent& Sizes::ExtentOf(const Node& node, const Slot& slot) const {
  if (slot.operand) return Of(node.operand(*slot.operand))[slot.at];
  return attributes_.at({&node, slot.attribute}).at(slot.at);
}

void Sizes::AddInferred(const Node& node, size_t i, size_t d, const SizeSets& found,
                        const std::vector<Types>& doubled) {
  const int64_t size = node.type(i).shape.dims()[d];
  const Extent extent = Of(const_cast<Node&>(node).result(i))[d];
  std::vector<size_t> changing;  // the sets with which the dimension changes
  Slots sources;
  for (size_t s = 0; s < found.sets.size(); ++s) {
    if (doubled[s][i].shape.dims()[d] == size) continue;
    changing.push_back(s);
    sources.insert(sources.end(), found.sets[s].begin(), found.sets[s].end());
  }
  if (changing.size() == 1) {
    const Slot& first = sources[0];
    if (doubled[changing[0]][i].shape.dims()[d] == 2 * size && size % first.size == 0)
      return UnifyMultiple(extent, size / first.size, ExtentOf(node, first));
  }
  FixWindows(node, sources);
  const bool is_of_attribute = std::any_of(node.op().attribute_defs().begin(), node.op().attribute_defs().end(),
                                           [](const auto& def) { return def.is_per_dim; });
  if (is_of_attribute && i == 0) return;
  if (changing.empty()) sources = found.stuck;
  if (sources.empty()) factors_.Fix(extent);
  else FollowByInference(node, i, d, sources);
}

// Of a window and what it slides over, the window stays.
void Sizes::FixWindows(const Node& node, const Slots& sources) {
  int64_t largest = 0;
  for (const Slot& source : sources) largest = std::max(largest, source.size);
  for (const Slot& source : sources) {
    if (source.size < largest) factors_.Fix(ExtentOf(node, source));
  }
}

void Sizes::FollowByInference(const Node& node, size_t i, size_t d, const Slots& sources) {
  Extents extents;
  for (const Slot& source : sources) extents.push_back(ExtentOf(node, source));
  factors_.Follow(Of(const_cast<Node&>(node).result(i))[d], extents, [this, &node, sources, extents, i, d] {
    std::vector<int64_t> sizes;
    for (const Extent& extent : extents) sizes.push_back(factors_.NewSize(extent));
    const absl::StatusOr<Types> types = InferWith(node, sources, sizes);
    return types.ok() ? (*types)[i].shape.dims()[d] : 0;
  });
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

bool Sizes::Restrict(const Node& node) {
  Extents all = OfOperandsAndResults(node);
  for (const OpDef::AttributeDef& def : node.op().attribute_defs()) {
    const auto changed = attributes_.find({&node, def.name});
    if (changed == attributes_.end()) continue;
    for (const auto& [at, extent] : changed->second) all.push_back(extent);
  }
  std::set<int> factors;
  for (const Extent& extent : all) {
    for (int factor : factors_.Free(extent)) factors.insert(factor);
  }
  if (factors.empty()) return false;
  Extent kept(factors.begin(), factors.end());
  factors_.Restore(kept);
  if (!Fits(node)) {
    factors_.Restore({});
    FixAll(all);
    return true;
  }
  // Sizes that follow are the first that need not be kept, as they are right where their sources are.
  const auto order = [&](int factor) {
    return factors_.IsFollower(factor) ? std::pair<int, int64_t>(0, -factor)
                                       : std::pair<int, int64_t>(1, -factors_.OldSize({factor}));
  };
  std::sort(kept.begin(), kept.end(), [&](int a, int b) { return order(a) < order(b); });
  for (int factor : Extent(kept)) {
    std::erase(kept, factor);
    factors_.Restore(kept);
    if (!Fits(node)) kept.push_back(factor);
  }
  factors_.Restore({});
  factors_.Fix(kept);
  return true;
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
      if (!sizes.Fits(*node) && sizes.Restrict(*node)) has_changed = true;  // at most once for each factor
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
