#include "backends/cuda/attention_views.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "core/ops/attention.h"

namespace lockstep::cuda {

using Ints = std::vector<int64_t>;

void StridedView::Transpose(const Ints& permutation) {
  Ints dims, moved;
  for (const int64_t dim : permutation) {
    dims.push_back(shape[dim]);
    moved.push_back(strides[At(dim)]);
  }
  shape = Shape(dims);
  strides = moved;
}

void StridedView::Slice(const Ints& start, const Ints& stride, const Shape& part) {
  for (size_t i = 0; i < strides.size(); ++i) {
    offset += start[i] * strides[i];
    strides[i] *= stride[i];
  }
  shape = part;
}

bool StridedView::Reshape(const Shape& to) {
  if (shape.num_elements() == 0 || shape.rank() == 0) return false;
  Ints found(to.dims().size());
  int64_t next = to.rank() - 1;  // the next dimension of `to`, from the last to the first
  // Dimensions whose elements are at equal distances, from the last to the first, are one group.
  int64_t distance = strides.back(), elements = 1, taken = 1;
  for (int64_t dim = shape.rank() - 1; dim >= 0; --dim) {
    elements *= shape[dim];
    if (dim > 0 && (shape[dim - 1] == 1 || strides[At(dim - 1)] == elements * distance)) continue;
    for (; next >= 0 && (taken < elements || to[next] == 1); --next) {
      found[At(next)] = taken * distance;
      taken *= to[next];
    }
    if (taken != elements) return false;
    if (dim > 0) distance = strides[At(dim - 1)], elements = taken = 1;
  }
  shape = to;
  strides = found;
  return next < 0;
}

AttentionRows RowsOf(const Shape& tensor) {
  const int64_t rank = tensor.rank(), heads = rank > 2 ? std::max<int64_t>(tensor[rank - 3], 1) : 1;
  const int64_t row = tensor[rank - 1], head = row * tensor[rank - 2];
  return {.heads = heads, .batch = heads * head, .head = head, .row = row};
}

namespace {

bool IsAttention(const Node& node) { return node.Is("attention") || node.Is("attention_grad"); }
bool IsMove(const Node& node) { return node.Is("slice") || node.Is("reshape") || node.Is("transpose"); }

bool IsResult(const Graph& graph, Value value) {
  return std::any_of(graph.results().begin(), graph.results().end(),
                     [&](const Result& result) { return result.value == value; });
}

// The only place where a value is read; null if there are several, or if the value is a result of the graph.
struct Use {
  const Node* user = nullptr;
  size_t operand = 0;
};
Use OnlyUseOf(const Graph& graph, Value value) {
  Use found;
  if (IsResult(graph, value)) return found;
  for (const Node* user : std::set<const Node*>(value.node->users().begin(), value.node->users().end())) {
    for (size_t i = 0; i < user->operands().size(); ++i) {
      if (user->operand(i) != value) continue;
      if (found.user != nullptr) return {};
      found = {user, i};
    }
  }
  return found;
}

Ints Inverse(const Ints& permutation) {
  Ints inverse(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) inverse[At(permutation[i])] = static_cast<int64_t>(i);
  return inverse;
}

// Applies a move to a view of its operand.
bool Apply(const Node& move, StridedView& view) {
  if (move.Is("reshape")) return view.Reshape(move.type().shape);
  if (move.Is("transpose")) view.Transpose(move.attr<Ints>("permutation"));
  else view.Slice(move.attr<Ints>("start"), move.attr<Ints>("stride"), move.type().shape);
  return true;
}

// Turns a view of the result of a reshape or transpose into one of its operand.
bool Undo(const Node& move, StridedView& view) {
  if (move.Is("reshape")) return view.Reshape(move.operand(0).shape());
  view.Transpose(Inverse(move.attr<Ints>("permutation")));
  return true;
}

// Returns the view if kernels can read and write its rows: whole multiples of 16 bytes at such addresses.
std::optional<AttentionView> AsRows(const StridedView& view) {
  const int64_t rank = view.shape.rank(), size = static_cast<int64_t>(SizeOf(view.base.dtype()));
  AttentionRows rows = RowsOf(view.shape);
  rows.row = view.strides[At(rank - 2)];
  rows.head = rank > 2 ? view.strides[At(rank - 3)] : 0;
  rows.batch = rank > 3 ? view.strides[At(rank - 4)] : 0;
  for (int64_t i = 0; i < rank - 4; ++i) {
    if (view.strides[At(i)] != view.strides[At(i + 1)] * view.shape[i + 1]) return std::nullopt;
  }
  for (const int64_t bytes : {view.offset * size, rows.row * size, rows.head * size, rows.batch * size,
                              static_cast<int64_t>(view.base.type().num_bytes())}) {
    if (bytes % 16 != 0) return std::nullopt;
  }
  if (view.strides.back() != 1) return std::nullopt;
  return AttentionView{view.base, view.offset, rows};
}

// The operands that kernels read by rows.
std::vector<size_t> RowOperandsOf(const Node& node) {
  if (node.Is("attention")) return {0, 1, 2};
  return {0, 1, 2, ops::kGradOperands.dy};
}

}  // namespace

AttentionViews::AttentionViews(const Graph& graph) {
  FindResults(graph);
  FindOperands(graph);
}

AttentionView AttentionViews::OfOperand(const Node& node, size_t i) const {
  const auto found = operands_.find({&node, i});
  if (found != operands_.end()) return found->second;
  return {node.operand(i), 0, RowsOf(node.operand(i).shape())};
}

AttentionView AttentionViews::OfResult(const Node& node, size_t i) const {
  const auto found = results_.find({&node, i});
  if (found != results_.end()) return found->second;
  // A Value is a handle to a mutable node; lowering does not change nodes.
  return {const_cast<Node&>(node).result(i), 0, RowsOf(node.type(i).shape)};
}

// Follows each result through reshapes and transposes, and all results of a node into a concat of only them.
void AttentionViews::FindResults(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (!IsAttention(node)) continue;
    const size_t count = node.Is("attention") ? 1 : 3;
    std::vector<std::vector<const Node*>> chains(count);
    std::vector<Value> ends;
    std::vector<Use> uses;
    for (size_t i = 0; i < count; ++i) {
      ends.push_back(const_cast<Node&>(node).result(i));
      uses.push_back(OnlyUseOf(graph, ends[i]));
      while (uses[i].user != nullptr && (uses[i].user->Is("reshape") || uses[i].user->Is("transpose"))) {
        chains[i].push_back(uses[i].user);
        ends[i] = const_cast<Node*>(uses[i].user)->result();
        uses[i] = OnlyUseOf(graph, ends[i]);
      }
    }
    const Node* concat = uses[0].user;
    const bool is_joined = concat != nullptr && concat->Is("concat") && concat->operands().size() == count &&
                           std::all_of(uses.begin(), uses.end(), [&](const Use& use) { return use.user == concat; });
    std::vector<std::optional<AttentionView>> views;
    for (size_t i = 0; i < count; ++i) {
      StridedView view(is_joined ? const_cast<Node*>(concat)->result() : ends[i]);
      if (is_joined) {
        Ints start(ends[i].shape().dims().size());
        const int64_t dim = concat->attr<int64_t>("dim");
        for (size_t j = 0; j < uses[i].operand; ++j) start[At(dim)] += concat->operand(j).shape()[dim];
        view.Slice(start, Ints(start.size(), 1), ends[i].shape());
      }
      const bool is_view =
          std::all_of(chains[i].rbegin(), chains[i].rend(), [&](const Node* move) { return Undo(*move, view); });
      views.push_back(is_view ? AsRows(view) : std::nullopt);
    }
    const bool all = std::all_of(views.begin(), views.end(), [](const auto& view) { return view.has_value(); });
    if (is_joined && all) moves_.insert(concat);
    for (size_t i = 0; i < count; ++i) {
      if (!views[i] || (is_joined && !all)) continue;
      moves_.insert(chains[i].begin(), chains[i].end());
      results_.emplace(Position(&node, i), *views[i]);
    }
  }
}

// A move before attention is part of views if nothing else reads its result. An operand that is no such view needs its
// moves, and then views of other operands are shorter.
void AttentionViews::FindOperands(const Graph& graph) {
  std::set<Position> readers;
  for (const Node& node : graph.nodes()) {
    if (!IsAttention(node)) continue;
    for (const size_t i : RowOperandsOf(node)) readers.emplace(&node, i);
  }
  std::unordered_set<const Node*> moves;
  const auto reads_through = [&](const Node& user, const Node& move) {
    if (moves.count(&user) > 0) return true;
    for (size_t i = 0; i < user.operands().size(); ++i) {
      if (user.operand(i).node == &move && readers.count({&user, i}) == 0) return false;
    }
    return true;
  };
  for (bool changed = true; changed;) {
    moves.clear();
    operands_.clear();
    for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
      if (!IsMove(*node) || Contains(*node) || node->users().empty()) continue;
      if (IsResult(graph, const_cast<Node&>(*node).result())) continue;
      if (std::all_of(node->users().begin(), node->users().end(),
                      [&](const Node* user) { return reads_through(*user, *node); })) {
        moves.insert(&*node);
      }
    }
    const size_t count = readers.size();
    for (auto reader = readers.begin(); reader != readers.end();) {
      std::vector<const Node*> chain;
      Value base = reader->first->operand(reader->second);
      for (; moves.count(base.node) > 0; base = base.node->operand(0)) chain.push_back(base.node);
      StridedView view(base);
      const bool is_view =
          std::all_of(chain.rbegin(), chain.rend(), [&](const Node* move) { return Apply(*move, view); });
      const std::optional<AttentionView> rows = is_view ? AsRows(view) : std::nullopt;
      if (rows) operands_.emplace(*reader, *rows);
      reader = rows ? std::next(reader) : readers.erase(reader);
    }
    changed = readers.size() < count;
  }
  moves_.insert(moves.begin(), moves.end());
}

}  // namespace lockstep::cuda
