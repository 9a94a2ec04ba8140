#include "backends/cuda/attention_views.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

#include "backends/codegen/grid_compiler.h"
#include "backends/loops/channels_last.h"
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

// Returns the view as a transpose of its whole base that keeps rows of adjacent elements.
std::optional<TransposedOperand> AsTransposed(const StridedView& view) {
  if (view.strides.empty() || view.strides.back() != 1) return std::nullopt;
  Ints order(view.strides.size());  // the dimensions in memory
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return view.strides[At(a)] > view.strides[At(b)]; });
  int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    if (view.shape[*dim] != 1 && view.strides[At(*dim)] != stride) return std::nullopt;
    stride *= view.shape[*dim];
  }
  if (stride != view.base.shape().num_elements()) return std::nullopt;
  return TransposedOperand{view.base, Inverse(order)};
}

// The operands that kernels read by rows.
std::vector<size_t> RowOperandsOf(const Node& node) {
  if (node.Is("attention")) return {0, 1, 2};
  return {0, 1, 2, ops::kGradOperands.dy};
}

}  // namespace

// The reshapes and transposes of a result of attention, one after the other.
struct AttentionViews::Chain {
  std::vector<const Node*> moves;
  Value end;  // the last move's result
  Use use;    // the only use of `end`; null if there are several, or if it is a result
  std::vector<std::pair<size_t, Use>> fusions;  // that read the operand of the move at this position
};

std::vector<AttentionViews::Use> AttentionViews::UsesOf(Value value) {
  std::vector<Use> uses;
  for (const Node* user : std::set<const Node*>(value.node->users().begin(), value.node->users().end())) {
    for (size_t i = 0; i < user->operands().size(); ++i) {
      if (user->operand(i) == value) uses.push_back({user, i});
    }
  }
  return uses;
}

// Follows `value` as long as a move is its only use, besides fusions if `with_fusions`.
AttentionViews::Chain AttentionViews::ChainFrom(const Graph& graph, Value value, bool with_fusions) {
  Chain chain;
  for (chain.end = value;; chain.end = const_cast<Node*>(chain.use.user)->result()) {
    std::vector<Use> uses = UsesOf(chain.end), fusions;
    if (with_fusions) {
      const auto others =
          std::stable_partition(uses.begin(), uses.end(), [](const Use& use) { return use.user->Is("fusion"); });
      fusions.assign(uses.begin(), others);
      uses.erase(uses.begin(), others);
    }
    chain.use = uses.size() == 1 && !IsResult(graph, chain.end) ? uses[0] : Use();
    if (chain.use.user == nullptr || !(chain.use.user->Is("reshape") || chain.use.user->Is("transpose"))) return chain;
    for (const Use& fusion : fusions) chain.fusions.emplace_back(chain.moves.size(), fusion);
    chain.moves.push_back(chain.use.user);
  }
}

AttentionViews::AttentionViews(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (node.Is("attention")) FindOutput(graph, node);
    if (node.Is("attention_grad")) FindGradients(graph, node);
  }
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

TransposedOperand AttentionViews::OfLoopOperand(const Node& node, size_t i) const {
  const auto found = loop_operands_.find({&node, i});
  return found != loop_operands_.end() ? found->second : TransposedOperand{node.operand(i), {}};
}

std::vector<Ints> AttentionViews::PermutationsOf(const Node& node) const {
  std::vector<Ints> permutations;
  for (size_t i = 0; i < node.operands().size(); ++i) permutations.push_back(OfLoopOperand(node, i).permutation);
  const bool any =
      std::any_of(permutations.begin(), permutations.end(), [](const Ints& each) { return !each.empty(); });
  return any ? permutations : std::vector<Ints>();
}

bool AttentionViews::AddLoopOperand(const Position& operand, const StridedView& view) {
  const std::optional<TransposedOperand> transposed = AsTransposed(view);
  if (!transposed) return false;
  loop_operands_.emplace(operand, *transposed);
  const absl::StatusOr<Graph> body =
      BodyOfTransposed(operand.first->attr<Region>("body").graph(), PermutationsOf(*operand.first));
  const bool is_loop = body.ok() && AnalyzeGrid(*body).ok();
  if (!is_loop) loop_operands_.erase(operand);
  return is_loop;
}

// Attention writes y through the longest part of its chain through which the fusions beside it can read.
void AttentionViews::FindOutput(const Graph& graph, const Node& attention) {
  Chain chain = ChainFrom(graph, const_cast<Node&>(attention).result(0), /*with_fusions=*/true);
  while (!chain.moves.empty() && !WritesThrough(attention, chain)) chain.moves.pop_back();
  moves_.insert(chain.moves.begin(), chain.moves.end());
}

bool AttentionViews::WritesThrough(const Node& attention, const Chain& chain) {
  StridedView view(const_cast<Node*>(chain.moves.back())->result());
  const auto before = loop_operands_;
  bool is_view = true;
  for (size_t i = chain.moves.size(); i-- > 0 && is_view;) {
    is_view = Undo(*chain.moves[i], view);
    for (const auto& [position, use] : chain.fusions) {
      if (position == i) is_view = is_view && AddLoopOperand({use.user, use.operand}, view);
    }
  }
  const std::optional<AttentionView> rows = is_view ? AsRows(view) : std::nullopt;
  if (rows) results_.emplace(Position(&attention, 0), *rows);
  else loop_operands_ = before;
  return rows.has_value();
}

// Follows each gradient through reshapes and transposes, and all three into a concat of only them.
void AttentionViews::FindGradients(const Graph& graph, const Node& node) {
  constexpr size_t kCount = 3;
  std::vector<Chain> chains;
  for (size_t i = 0; i < kCount; ++i)
    chains.push_back(ChainFrom(graph, const_cast<Node&>(node).result(i), /*with_fusions=*/false));
  const Node* concat = chains[0].use.user;
  const bool is_joined =
      concat != nullptr && concat->Is("concat") && concat->operands().size() == kCount &&
      std::all_of(chains.begin(), chains.end(), [&](const Chain& chain) { return chain.use.user == concat; });
  std::vector<std::optional<AttentionView>> views;
  for (const Chain& chain : chains) {
    StridedView view(is_joined ? const_cast<Node*>(concat)->result() : chain.end);
    if (is_joined) {
      Ints start(chain.end.shape().dims().size());
      const int64_t dim = concat->attr<int64_t>("dim");
      for (size_t j = 0; j < chain.use.operand; ++j) start[At(dim)] += concat->operand(j).shape()[dim];
      view.Slice(start, Ints(start.size(), 1), chain.end.shape());
    }
    const bool is_view =
        std::all_of(chain.moves.rbegin(), chain.moves.rend(), [&](const Node* move) { return Undo(*move, view); });
    views.push_back(is_view ? AsRows(view) : std::nullopt);
  }
  const bool all = std::all_of(views.begin(), views.end(), [](const auto& view) { return view.has_value(); });
  if (is_joined && all) moves_.insert(concat);
  for (size_t i = 0; i < kCount; ++i) {
    if (!views[i] || (is_joined && !all)) continue;
    moves_.insert(chains[i].moves.begin(), chains[i].moves.end());
    results_.emplace(Position(&node, i), *views[i]);
  }
}

bool AttentionViews::AddOperand(const Position& operand, const StridedView& view) {
  if (!IsAttention(*operand.first)) return AddLoopOperand(operand, view);
  const std::optional<AttentionView> rows = AsRows(view);
  if (rows) operands_.emplace(operand, *rows);
  return rows.has_value();
}

// A move before attention is part of views if only attention, and fusions of the same values, read its result. An
// operand that is no such view needs its moves, and then views of other operands are shorter.
void AttentionViews::FindOperands(const Graph& graph) {
  std::set<Position> readers;
  for (const Node& node : graph.nodes()) {
    if (!IsAttention(node)) continue;
    for (const size_t i : RowOperandsOf(node)) {
      readers.emplace(&node, i);
      for (const Use& use : UsesOf(node.operand(i))) {
        if (use.user->Is("fusion")) readers.emplace(use.user, use.operand);
      }
    }
  }
  const std::map<Position, TransposedOperand> of_results = loop_operands_;
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
    loop_operands_ = of_results;
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
          std::all_of(chain.rbegin(), chain.rend(), [&](const Node* move) { return Apply(*move, view); }) &&
          (chain.empty() || AddOperand(*reader, view));
      reader = is_view ? std::next(reader) : readers.erase(reader);
    }
    changed = readers.size() < count;
  }
  moves_.insert(moves.begin(), moves.end());
}

}  // namespace lockstep::cuda
