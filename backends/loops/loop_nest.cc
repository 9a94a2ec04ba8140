#include "backends/loops/loop_nest.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "backends/loops/positions.h"
#include "core/op_def.h"

namespace lockstep {

namespace {

Element Leaf(Element::Kind kind, const Node* node, int index, Affine at, DType dtype) {
  Element element;
  element.kind = kind;
  element.node = node;
  element.index = index;
  element.at = std::move(at);
  element.dtype = dtype;
  return element;
}

// Follows the values of a body from its results to its inputs, over one loop nest. If a position needs a loop dimension
// to be split, the walk stops and MakeLoopNest starts a new walk over the finer nest.
class Walk {
 public:
  Walk(const Graph& body, LoopNest& nest) : body_(body), nest_(nest) {}

  const std::optional<SplitDim>& split() const { return split_; }

  absl::Status Run(const Node* reduction) {
    const Affine domain = Identity(false), kept = Identity(true);
    kept_ = kept;
    int64_t domain_size = 1;
    for (int64_t extent : nest_.extents) domain_size *= extent;
    for (size_t r = 0; r < body_.results().size() && !split_; ++r) {
      const Value value = body_.results()[r].value;
      Output output;
      output.result = static_cast<int>(r);
      output.dtype = value.dtype();
      output.after_reduction = reduction != nullptr && value.type().num_elements() == nest_.num_kept();
      if (!output.after_reduction && value.type().num_elements() != domain_size) {
        return Unimplemented() << "fusion: result " << value.type() << " of " << value.node->Describe()
                               << " does not have the " << domain_size << " elements of the loop";
      }
      output.at = output.after_reduction ? kept : domain;
      ASSIGN_OR_RETURN(output.element, Visit(value, output.at));
      if (split_) return absl::OkStatus();
      output.phase = nest_.elements[static_cast<size_t>(output.element)].phase;
      nest_.outputs.push_back(std::move(output));
    }
    nest_.num_phases = 1;
    for (const Reduction& one : nest_.reductions) nest_.num_phases = std::max(nest_.num_phases, one.phase + 1);
    for (const Output& one : nest_.outputs) {
      if (!one.after_reduction) nest_.num_phases = std::max(nest_.num_phases, one.phase + 1);
    }
    return absl::OkStatus();
  }

 private:
  // Returns the row-major position over all loop dimensions, or over the kept ones.
  Affine Identity(bool kept_only) const {
    Affine at = Affine::Zero(nest_.extents.size());
    int64_t stride = 1;
    for (size_t k = nest_.extents.size(); k-- > 0;) {
      if (kept_only && nest_.reduced[k]) continue;
      if (nest_.extents[k] != 1) at.strides[k] = stride;
      stride *= std::max<int64_t>(nest_.extents[k], 1);
    }
    return at;
  }

  // Returns the element that is `value` at the row-major position `at`; -1 after a split.
  absl::StatusOr<int> Visit(Value value, const Affine& at) {
    const auto [it, is_new] = seen_.try_emplace({value.node, value.index, at}, -1);
    if (!is_new) return it->second;
    ASSIGN_OR_RETURN(const int element, Make(value, at));
    seen_[{value.node, value.index, at}] = element;
    return element;
  }

  absl::StatusOr<int> Make(Value value, const Affine& at) {
    const Node& node = *value.node;
    if (node.is_input()) {
      for (size_t i = 0; i < body_.inputs().size(); ++i) {
        if (body_.inputs()[i].value == value)
          return Add(Leaf(Element::Kind::kLoad, nullptr, static_cast<int>(i), at, value.dtype()));
      }
    }
    if (node.is_constant()) {
      // All elements of a splat are equal, so the position does not matter.
      const bool splat = node.attr<Tensor>("value").AllElementsEqual();
      return Add(Leaf(Element::Kind::kConstant, &node, 0, splat ? Affine::Zero(at.strides.size()) : at, value.dtype()));
    }
    if (node.op().reduction()) return MakeReduced(node, at);
    if (node.op().has_trait(kElementwise)) {
      Element element = Leaf(Element::Kind::kOp, &node, 0, Affine::Zero(at.strides.size()), value.dtype());
      for (Value operand : node.operands()) {
        ASSIGN_OR_RETURN(const int argument, Visit(operand, at));
        if (split_) return -1;
        element.arguments.push_back(argument);
      }
      return Add(std::move(element));
    }
    return MakeMoved(node, at);
  }

  // Handles ops that only move elements, which are the operand at another position, and generators, whose number
  // follows from the position.
  absl::StatusOr<int> MakeMoved(const Node& node, const Affine& at) {
    if (node.op().has_trait(kKeepsOrder)) return Visit(node.operand(0), at);
    if (!node.op().index_map() && !node.op().count())
      return Unimplemented() << "fusion: a loop cannot contain " << node.Describe();
    const auto taken_apart = IndicesOf(at, node.type().shape, nest_.extents);
    if (std::holds_alternative<SplitDim>(taken_apart)) {
      split_ = std::get<SplitDim>(taken_apart);
      return -1;
    }
    if (std::holds_alternative<NotAffine>(taken_apart)) {
      return Unimplemented() << "fusion: the shape " << node.type() << " of " << node.Describe()
                             << " does not divide the loop's";
    }
    const auto& indices = std::get<std::vector<Affine>>(taken_apart);
    if (node.op().count())
      return Add(Leaf(Element::Kind::kCount, &node, 0, Composed(CountOf(node), indices), node.type().dtype));
    const Shape& shape = node.operand(0).shape();
    const std::vector<int64_t> strides = StridesOf(shape);
    const IndexMap map = IndexMapOf(node);
    Affine moved = Affine::Zero(nest_.extents.size());
    for (size_t i = 0; i < strides.size(); ++i) {
      if (shape.dims()[i] != 1) moved = moved.Plus(Composed(map[i], indices), strides[i]);
    }
    return Visit(node.operand(0), moved);
  }

  // Composes `outer` with indices that are functions of the loop's indices.
  Affine Composed(const Affine& outer, const std::vector<Affine>& indices) const {
    Affine composed = Affine::Zero(nest_.extents.size());
    composed.constant = outer.constant;
    for (size_t d = 0; d < indices.size(); ++d) composed = composed.Plus(indices[d], outer.strides[d]);
    return composed;
  }

  absl::StatusOr<int> MakeReduced(const Node& node, const Affine& at) {
    if (at != kept_)
      return Unimplemented() << "fusion: the loop needs another element of " << node.Describe() << " than it reduces";
    ASSIGN_OR_RETURN(const int operand, Visit(node.operand(0), Identity(false)));
    if (split_) return -1;
    Reduction reduction;
    reduction.node = &node;
    reduction.kind = *node.op().reduction();
    reduction.operand = operand;
    reduction.dtype = node.type().dtype;
    reduction.phase = nest_.elements[static_cast<size_t>(operand)].phase;
    Element element =
        Leaf(Element::Kind::kReduced, &node, static_cast<int>(nest_.reductions.size()), at, node.type().dtype);
    element.phase = reduction.phase + 1;
    nest_.reductions.push_back(reduction);
    return Add(std::move(element));
  }

  int Add(Element element) {
    element.depends.assign(nest_.extents.size(), false);
    for (size_t k = 0; k < nest_.extents.size(); ++k) element.depends[k] = element.at.strides[k] != 0;
    for (int argument : element.arguments) {
      const Element& other = nest_.elements[static_cast<size_t>(argument)];
      element.phase = std::max(element.phase, other.phase);
      for (size_t k = 0; k < element.depends.size(); ++k) {
        if (other.depends[k]) element.depends[k] = true;
      }
    }
    nest_.elements.push_back(std::move(element));
    return static_cast<int>(nest_.elements.size()) - 1;
  }

  struct Key {
    const Node* node;
    int index;
    Affine at;
    bool operator<(const Key& other) const {
      // The order of pointers has no effect, because the map is used only for lookup.
      if (node != other.node) return std::less<const Node*>()(node, other.node);
      return index != other.index ? index < other.index : at < other.at;
    }
  };

  const Graph& body_;
  LoopNest& nest_;
  Affine kept_;
  std::map<Key, int> seen_;
  std::optional<SplitDim> split_;
};

// Returns the reduction that determines the loop's dimensions, or null. Returns an error if reductions differ.
absl::StatusOr<const Node*> FindReduction(const Graph& body) {
  const Node* first = nullptr;
  for (const Node& node : body.nodes()) {
    if (!node.op().reduction()) continue;
    if (!first) first = &node;
    if (node.operand(0).shape() != first->operand(0).shape() ||
        node.attr<std::vector<int64_t>>("dims") != first->attr<std::vector<int64_t>>("dims")) {
      return Unimplemented() << "fusion: " << node.Describe() << " and " << first->Describe()
                             << " reduce different shapes or dims";
    }
  }
  return first;
}

void EraseDim(LoopNest& nest, size_t k) {
  const auto erase = [k](auto& list) { list.erase(list.begin() + static_cast<std::ptrdiff_t>(k)); };
  erase(nest.extents);
  erase(nest.reduced);
  for (Element& element : nest.elements) {
    erase(element.at.strides);
    erase(element.depends);
  }
  for (Output& output : nest.outputs) erase(output.at.strides);
}

// Drops dimensions of one iteration, and merges adjacent dimensions that every position traverses as one.
void MergeDims(LoopNest& nest) {
  for (size_t k = nest.extents.size(); k-- > 0;) {
    if (nest.extents[k] == 1 && nest.extents.size() > 1) EraseDim(nest, k);
  }
  for (size_t k = nest.extents.size() - 1; k-- > 0;) {
    const int64_t inner = nest.extents[k + 1];
    const auto merges = [&](const Affine& at) { return at.strides[k] == at.strides[k + 1] * inner; };
    bool all = nest.reduced[k] == nest.reduced[k + 1];
    for (const Element& element : nest.elements) all = all && merges(element.at);
    for (const Output& output : nest.outputs) all = all && merges(output.at);
    if (!all) continue;
    nest.extents[k + 1] *= nest.extents[k];
    EraseDim(nest, k);
  }
}

// Returns the operands that a result may overwrite: they are read only at the position that is written, have elements
// of the same size, and are not read later.
std::vector<int> OverwritableBy(const LoopNest& nest, const Output& output, const Graph& body) {
  std::vector<int> operands;
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    bool ok = body.inputs()[i].value.type().num_bytes() ==
              body.results()[static_cast<size_t>(output.result)].value.type().num_bytes();
    for (int phase = 0; phase <= nest.num_phases && ok; ++phase) {
      const std::vector<bool> needed = nest.NeededIn(phase);
      for (size_t e = 0; e < nest.elements.size(); ++e) {
        const Element& element = nest.elements[e];
        if (!needed[e] || element.kind != Element::Kind::kLoad || element.index != static_cast<int>(i)) continue;
        ok = ok && element.at == output.at && SizeOf(element.dtype) == SizeOf(output.dtype);
        ok = ok && (output.after_reduction || phase <= output.phase);
      }
    }
    if (ok) operands.push_back(static_cast<int>(i));
  }
  return operands;
}

}  // namespace

DType Reduction::sum_dtype() const {
  const bool adds = kind != ReduceKind::kMax && kind != ReduceKind::kMin;
  return adds && dtype == DType::kF32 ? DType::kF64 : dtype;
}

int64_t LoopNest::num_points() const { return num_kept() * num_reduced(); }

int64_t LoopNest::num_kept() const {
  int64_t count = 1;
  for (size_t k = 0; k < extents.size(); ++k) {
    if (!reduced[k]) count *= extents[k];
  }
  return count;
}

int64_t LoopNest::num_reduced() const {
  int64_t count = 1;
  for (size_t k = 0; k < extents.size(); ++k) {
    if (reduced[k]) count *= extents[k];
  }
  return count;
}

int64_t LoopNest::num_heavy() const {
  return std::count_if(elements.begin(), elements.end(), [](const Element& element) {
    return element.kind == Element::Kind::kOp && element.node->op().has_trait(kExpensive);
  });
}

std::vector<bool> LoopNest::NeededIn(int phase) const {
  std::vector<bool> needed(elements.size(), false);
  for (const Reduction& reduction : reductions) {
    if (reduction.phase == phase) needed[static_cast<size_t>(reduction.operand)] = true;
  }
  for (const Output& output : outputs) {
    if (output.after_reduction ? phase == num_phases : phase == output.phase)
      needed[static_cast<size_t>(output.element)] = true;
  }
  for (size_t i = elements.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (int argument : elements[i].arguments) needed[static_cast<size_t>(argument)] = true;
  }
  return needed;
}

std::vector<std::vector<int>> OverwritableOperands(const LoopNest& nest, const Graph& body) {
  std::vector<std::vector<int>> operands(body.results().size());
  for (const Output& output : nest.outputs)
    operands[static_cast<size_t>(output.result)] = OverwritableBy(nest, output, body);
  return operands;
}

absl::StatusOr<LoopNest> MakeLoopNest(const Graph& body) {
  if (body.results().empty()) return Unimplemented() << "fusion: the body has no results";
  ASSIGN_OR_RETURN(const Node* reduction, FindReduction(body));
  std::vector<int64_t> extents =
      reduction ? reduction->operand(0).shape().dims() : body.results()[0].value.shape().dims();
  std::vector<bool> reduced(extents.size(), false);
  if (reduction) {
    for (int64_t dim : reduction->attr<std::vector<int64_t>>("dims")) reduced[static_cast<size_t>(dim)] = true;
  }
  if (extents.empty()) {
    extents = {1};
    reduced = {false};
  }
  while (true) {
    LoopNest nest;
    nest.extents = extents;
    nest.reduced = reduced;
    Walk walk(body, nest);
    RETURN_IF_ERROR(walk.Run(reduction));
    if (!walk.split()) {
      MergeDims(nest);
      return nest;
    }
    // Every split makes the nest finer by a factor above 1, so this loop ends.
    const auto [dim, inner] = *walk.split();
    const auto at = static_cast<std::ptrdiff_t>(dim);
    extents[dim] /= inner;
    extents.insert(extents.begin() + at + 1, inner);
    reduced.insert(reduced.begin() + at, reduced[dim]);
  }
}

}  // namespace lockstep
