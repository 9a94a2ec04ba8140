#include "passes/optimize/recognize_attention.h"

#include <cmath>
#include <limits>
#include <optional>

#include "core/builder.h"
#include "core/op_def.h"
#include "passes/optimize/known_values.h"
#include "passes/simplify/constants.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;
constexpr double kInf = std::numeric_limits<double>::infinity();

// The matched parts of a written-out attention, starting at its softmax.
struct Pattern {
  Node* softmax = nullptr;
  Node* weighting = nullptr;  // the product with the values
  Node* product = nullptr;    // the product of queries and keys
  double scale = 1;
  Value added;                  // a mask to add, of the softmax's shape, or null
  Value selected;               // a bool mask of the softmax's shape, or null; true where scores are taken ...
  bool selects_hidden = false;  // ... or, if this is true, where they are not taken
};

bool KeepsMatrices(const Shape& a, const Shape& b) {
  const int64_t m = a.rank(), n = b.rank();
  return m >= 2 && n >= 2 && a[m - 1] == b[n - 1] && a[m - 2] == b[n - 2];
}

bool IsReshapeOfBatch(const Node& node) {
  return node.Is("reshape") && KeepsMatrices(node.operand(0).shape(), node.type().shape);
}

// Returns true for a product for each index of the batch; false for a product with a single matrix.
bool IsOfBatches(const Node& matmul) {
  return matmul.operand(0).shape().rank() == matmul.operand(1).shape().rank() && !matmul.attr<bool>("sum_batch");
}

class Recognizer {
 public:
  explicit Recognizer(Graph& graph) : graph_(graph) {}

  absl::StatusOr<bool> Run() {
    if (!graph_.mesh().axes().empty()) return false;
    bool changed = false;
    for (auto it = graph_.nodes().begin(); it != graph_.nodes().end();) {
      Node& node = *it++;
      if (!node.Is("softmax")) continue;
      const std::optional<Pattern> pattern = Match(node);
      if (!pattern) continue;
      RETURN_IF_ERROR(Rewrite(*pattern));
      changed = true;
    }
    return changed;
  }

 private:
  // --- Matching ------------------------------------------------------------------------------------------------------

  std::optional<Pattern> Match(Node& softmax) {
    const Shape& shape = softmax.type().shape;
    if (shape.rank() < 2 || softmax.attr<int64_t>("dim") != shape.rank() - 1) return std::nullopt;
    Pattern pattern;
    pattern.softmax = &softmax;
    if (!MatchWeighting(pattern) || !MatchScores(softmax.operand(0), pattern)) return std::nullopt;
    return pattern;
  }

  // Matches the nodes from the softmax down to the product with the values.
  bool MatchWeighting(Pattern& pattern) {
    Value p = pattern.softmax->result();
    if (const Value guarded = WithoutNan(p)) p = guarded;
    while (true) {
      if (!HasOneUse(graph_, p)) return false;
      Node& user = *p.node->users()[0];
      if (user.Is("matmul")) {
        pattern.weighting = &user;
        return user.operand(0) == p && !user.attr<bool>("transpose_a") && IsOfBatches(user);
      }
      if (!IsReshapeOfBatch(user)) return false;
      p = user.result();
    }
  }

  // Returns select(p != p, 0, p) if it is the only use of p, else null.
  Value WithoutNan(Value p) {
    Value guarded;
    for (Node* user : p.node->users()) {
      if (user->Is("compare") && user->operand(0) == p && user->operand(1) == p) continue;
      if (!user->Is("select") || (guarded && guarded.node != user)) return Value();
      const Node& condition = *user->operand(0).node;
      const bool is_nan = condition.Is("compare") && condition.operand(0) == p && condition.operand(1) == p;
      if (!is_nan || condition.users().size() != 1) return Value();
      const std::string& direction = condition.attr<std::string>("direction");
      const bool zero_first = direction == "ne";
      if (!zero_first && direction != "eq") return Value();
      if (user->operand(zero_first ? 2 : 1) != p || known_.FindNumber(user->operand(zero_first ? 1 : 2)) != 0.0)
        return Value();
      guarded = user->result();
    }
    for (const Result& result : graph_.results()) {
      if (result.value == p) return Value();
    }
    return guarded;
  }

  // Matches the nodes from the operand of the softmax up to the product of queries and keys.
  bool MatchScores(Value scores, Pattern& pattern) {
    Node& node = *scores.node;
    if (node.is_input() || !HasOneUse(graph_, scores)) return false;
    if (node.Is("matmul")) {
      pattern.product = &node;
      return IsOfBatches(node);
    }
    if (IsReshapeOfBatch(node)) return MatchScores(node.operand(0), pattern);
    if (node.Is("mul") || node.Is("div")) return MatchFactor(node, pattern);
    if (scores.shape() != pattern.softmax->type().shape) return false;
    if (node.Is("add")) {
      if (pattern.added || pattern.selected || pattern.scale != 1) return false;
      for (const size_t i : {0, 1}) {
        Pattern other = pattern;
        other.added = node.operand(1 - i);
        if (!MatchScores(node.operand(i), other)) continue;
        pattern = other;
        return true;
      }
      return false;
    }
    return node.Is("select") && MatchSelect(node, pattern);
  }

  bool MatchFactor(Node& node, Pattern& pattern) {
    for (const size_t i : {1, 0}) {
      const std::optional<double> factor = known_.FindNumber(node.operand(i));
      if (!factor || (node.Is("div") && i == 0)) continue;
      pattern.scale *= node.Is("div") ? 1 / *factor : *factor;
      return std::isfinite(pattern.scale) && MatchScores(node.operand(1 - i), pattern);
    }
    return false;
  }

  // Matches a select of minus infinity. A finite number is not matched: with it, a query that sees no keys gives the
  // mean of all values.
  bool MatchSelect(Node& node, Pattern& pattern) {
    if (pattern.added || pattern.selected) return false;
    for (const size_t hidden : {1, 2}) {
      if (known_.FindNumber(node.operand(hidden)) != -kInf) continue;
      pattern.selected = node.operand(0);
      pattern.selects_hidden = hidden == 1;
      return MatchScores(node.operand(3 - hidden), pattern);
    }
    return false;
  }

  // --- Rewriting -----------------------------------------------------------------------------------------------------

  struct Mask {
    Value value;  // null: none
    bool causal = false;
    int64_t past = 0;
  };

  absl::Status Rewrite(const Pattern& pattern) {
    Node& weighting = *pattern.weighting;
    Node& product = *pattern.product;
    Builder b(graph_, &weighting, pattern.softmax->source());
    double scale = pattern.scale;
    Value q = WithoutFactor(product.operand(0), scale), k = WithoutFactor(product.operand(1), scale);
    if (product.attr<bool>("transpose_a")) q = Transposed(b, q);
    if (!product.attr<bool>("transpose_b")) k = Transposed(b, k);
    Value v = weighting.operand(1);
    if (weighting.attr<bool>("transpose_b")) v = Transposed(b, v);
    const Shape& batch = pattern.softmax->type().shape;
    q = InBatch(b, q, batch), k = InBatch(b, k, batch), v = InBatch(b, v, batch);
    RETURN_IF_ERROR(b.status());
    const std::optional<std::pair<Value, Value>> once = Unrepeated(k, v);
    if (once) std::tie(k, v) = *once;
    const Mask mask = MaskOf(b, pattern);
    std::vector<Value> operands = {q, k, v};
    if (mask.value) operands.push_back(mask.value);
    const Value y = b.Op("attention", operands, {{"scale", scale}, {"causal", mask.causal}, {"past", mask.past}});
    RETURN_IF_ERROR(b.status());
    const Value result = b.Reshape(y, weighting.type().shape);
    RETURN_IF_ERROR(b.status());
    graph_.ReplaceUses(weighting.result(), result);
    return absl::OkStatus();
  }

  // Returns x without factors that are known numbers, and multiplies `scale` by them.
  Value WithoutFactor(Value x, double& scale) {
    while (x.node->Is("mul") || x.node->Is("div")) {
      Value rest;
      for (const size_t i : {1, 0}) {
        const std::optional<double> factor = known_.FindNumber(x.node->operand(i));
        if (rest || !factor || (x.node->Is("div") && i == 0)) continue;
        const double with = x.node->Is("div") ? scale / *factor : scale * *factor;
        if (!std::isfinite(with)) continue;
        scale = with;
        rest = x.node->operand(1 - i);
      }
      if (!rest) break;
      x = rest;
    }
    return x;
  }

  // Returns x with its last two dimensions swapped. Removes an existing transpose instead of adding one, if possible.
  static Value Transposed(Builder& b, Value x) {
    Ints swapped;
    for (int64_t i = 0; i < x.shape().rank(); ++i) swapped.push_back(i);
    std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
    if (IsReshapeOfBatch(*x.node)) {
      const Value before = Transposed(b, x.node->operand(0));
      if (!before) return before;
      Shape shape = x.shape();
      const int64_t rank = shape.rank();
      shape = shape.WithDim(rank - 1, x.shape()[rank - 2]).WithDim(rank - 2, x.shape()[rank - 1]);
      return b.Reshape(before, shape);
    }
    if (!x.node->Is("transpose")) return b.Transpose(x, swapped);
    Ints permutation = x.node->attr<Ints>("permutation");
    std::swap(permutation[permutation.size() - 1], permutation[permutation.size() - 2]);
    bool is_identity = true;
    for (size_t i = 0; i < permutation.size(); ++i) is_identity &= permutation[i] == static_cast<int64_t>(i);
    return is_identity ? x.node->operand(0) : b.Transpose(x.node->operand(0), permutation);
  }

  // Returns x with the leading dimensions of `like`: the first value in the chain of reshapes before x that has them,
  // or a new reshape.
  static Value InBatch(Builder& b, Value x, const Shape& like) {
    Ints dims(like.dims().begin(), like.dims().end() - 2);
    const int64_t rank = x.shape().rank();
    dims.push_back(x.shape()[rank - 2]);
    dims.push_back(x.shape()[rank - 1]);
    const Shape shape(dims);
    Value found;
    for (Value before = x;; before = before.node->operand(0)) {
      if (before.shape() == shape) found = before;
      if (!IsReshapeOfBatch(*before.node)) break;
    }
    return found ? found : b.Reshape(x, shape);
  }

  // If each head of x, [..., heads, n, size], is repeated, side by side, returns the value before the repetition and
  // the number of copies; else returns null.
  static std::pair<Value, int64_t> Once(Value x) {
    const Shape& shape = x.shape();
    const int64_t rank = shape.rank();
    if (rank < 3 || !x.node->Is("reshape") || !x.node->operand(0).node->Is("broadcast")) return {};
    const Value repeated = x.node->operand(0);
    if (repeated.shape().rank() != rank + 1) return {};
    const int64_t copies = repeated.shape()[rank - 2];
    for (int64_t i = 0; i <= rank; ++i) {
      const int64_t expected = i < rank - 3 ? shape[i] : i > rank - 2 ? shape[i - 1] : repeated.shape()[i];
      if (repeated.shape()[i] != expected) return {};
    }
    if (copies == 0 || repeated.shape()[rank - 3] * copies != shape[rank - 3]) return {};
    Ints others;
    for (int64_t i = 0; i <= rank; ++i) {
      if (i != rank - 2) others.push_back(i);
    }
    if (repeated.node->attr<Ints>("dims") != others) return {};
    return {repeated.node->operand(0), copies};
  }

  static std::optional<std::pair<Value, Value>> Unrepeated(Value k, Value v) {
    const auto [once_k, copies_k] = Once(k);
    const auto [once_v, copies_v] = Once(v);
    if (!once_k || !once_v || copies_k != copies_v) return std::nullopt;
    return std::make_pair(once_k, once_v);
  }

  // Returns a mask of the softmax's shape with extent 1 in the dimensions along which it is broadcast.
  static Value Unbroadcast(Builder& b, Value mask) {
    if (!mask.node->Is("broadcast")) return mask;
    const Value small = mask.node->operand(0);
    const Ints& dims = mask.node->attr<Ints>("dims");
    const int64_t rank = mask.shape().rank();
    if (dims.empty() || dims.back() != rank - 1) return mask;
    Ints extents(static_cast<size_t>(rank), 1);
    for (const int64_t dim : dims) extents[static_cast<size_t>(dim)] = mask.shape()[dim];
    return b.Reshape(small, Shape(extents));
  }

  Mask MaskOf(Builder& b, const Pattern& pattern) {
    if (!pattern.added && !pattern.selected) return {};
    Value value = Unbroadcast(b, pattern.added ? pattern.added : pattern.selected);
    if (!value) return {};
    if (const std::optional<Mask> causal = CausalMask(value, pattern)) return *causal;
    if (pattern.selected && pattern.selects_hidden) value = b.Op("not", {value});
    return {value};
  }

  // Matches a constant mask that is the same for the whole batch, and in which each query sees one more key than the
  // query before it.
  std::optional<Mask> CausalMask(Value mask, const Pattern& pattern) {
    const Tensor* const known = known_.Find(mask);
    const Shape& shape = mask.shape();
    const int64_t rank = shape.rank(), queries = pattern.softmax->type().shape[rank - 2], keys = shape[rank - 1];
    if (known == nullptr || shape.num_elements() != shape[rank - 2] * keys || keys == 0 || queries == 0)
      return std::nullopt;
    const auto sees = [&](int64_t i, int64_t j) -> std::optional<bool> {
      const double element = known->At((shape[rank - 2] == 1 ? 0 : i) * keys + j);
      if (pattern.selected) return (element != 0) != pattern.selects_hidden;
      if (element == 0) return true;
      // This is so small that the key has no weight next to a visible one.
      if (element == -kInf || element <= -1e30) return false;
      return std::nullopt;
    };
    int64_t first = 0;  // the number of keys that query 0 sees
    while (first < keys && sees(0, first) == true) ++first;
    bool hides = false;
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        const std::optional<bool> seen = sees(i, j);
        const bool expected = j < first + i;
        if (!seen) return std::nullopt;
        hides |= !*seen;
        if (*seen != expected && first < keys) return std::nullopt;
        if (first == keys && !*seen) return std::nullopt;
      }
    }
    if (first == 0) return std::nullopt;
    if (!hides) return Mask{};
    return Mask{Value(), true, first - 1};
  }

  Graph& graph_;
  KnownValues known_;
};

}  // namespace

Pass RecognizeAttention() {
  return {"recognize-attention", [](Graph& graph) { return Recognizer(graph).Run(); }};
}

}  // namespace lockstep::passes
