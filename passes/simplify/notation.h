// The notation of rewrite rules. A rule has a pattern, a replacement, and perhaps a condition.
//
//   {"mul_mul", kFloats, (x * c0) * c1, x * Fold(c0 * c1), ScalesExactly(c0, c1)}
//
// In a pattern,
//   x, y, z     (AnyValue) match any value; equal letters match the same value
//   c0, c1      (AnySplat) match a constant of equal elements, perhaps broadcast; equal letters match equal bits
//   p, q, ...   (AnyAttr)  match an attribute of an op; equal letters match equal bits
//   2, -0.0     match a constant whose elements all equal this number; 0.0 and -0.0 are different
//   x + y       matches a value of this op. Ops with kCommutative match with their operands in either order
//   Only(e)     matches e if it has no other use, so that it is removed when the rule is applied
//   As(y, e)    matches e, and names its value y.
// In a replacement, letters stand for what they matched. Numbers, Fold(c0 * c1) (an expression of constants, evaluated
// when the rule is applied) and Computed(f) are constants of the type of the operand beside them. Attributes are
// expressions too: p[q], a + s * b, !t.
//
// An Expr is a value that is built once, with the tables; matching walks it. Constant data; any thread.

#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/builder.h"
#include "core/graph.h"
#include "core/op_def.h"

namespace lockstep::passes {

using Ints = std::vector<int64_t>;

struct AnyValue {
  int slot;
};
struct AnySplat {
  int slot;
};
template <typename T>
class AttrExpr;

// Letters of all types of attributes share their slots.
template <typename T>
struct AnyAttr {
  int slot;
  AttrExpr<Ints> operator[](AnyAttr<Ints> places) const;  // for lists: the elements at these places
};

// The values of a pattern's letters, in a match at one node.
class Match {
 public:
  static constexpr size_t kSlots = 7;

  explicit Match(Node& node) : node_(&node) {}
  Node& node() const { return *node_; }  // the node to replace
  Value operator[](AnyValue x) const { return values_[static_cast<size_t>(x.slot)]; }
  const Tensor& operator[](AnySplat c) const { return *splats_[static_cast<size_t>(c.slot)].scalar; }
  template <typename T>
  const T& operator[](AnyAttr<T> a) const {
    return std::get<T>(attr(a.slot));
  }
  const Attribute& attr(int slot) const { return *attrs_[static_cast<size_t>(slot)]; }

 private:
  friend class Matcher;
  friend class Replacer;
  struct Splat {
    Value value;  // the matched value, with its shape
    std::optional<Tensor> scalar;
  };
  Node* node_;
  std::array<Value, kSlots> values_;
  std::array<Splat, kSlots> splats_;
  std::array<std::optional<Attribute>, kSlots> attrs_;
  std::vector<Value> numbers_;  // the constants that numbers matched
};

// Returns true if both have the same type and bits: -0.0 is not 0.0, and a NaN equals itself.
bool SameAttribute(const Attribute& a, const Attribute& b);

// --- Attributes ------------------------------------------------------------------------------------------------------

// A letter, or a computation from the values of letters.
template <typename T>
class AttrExpr {
 public:
  AttrExpr(AnyAttr<T> letter) : slot_(letter.slot), value_([letter](const Match& m) { return m[letter]; }) {}  // NOLINT
  AttrExpr(T value) : value_([value](const Match&) { return value; }) {}                                       // NOLINT
  AttrExpr(std::function<T(const Match&)> value) : value_(std::move(value)) {}                                 // NOLINT
  int slot() const { return slot_; }  // -1 for a computation
  T operator()(const Match& m) const { return value_(m); }

 private:
  int slot_ = -1;
  std::function<T(const Match&)> value_;
};

using IntsExpr = AttrExpr<Ints>;
using BoolExpr = AttrExpr<bool>;

// Elementwise on lists.
IntsExpr operator+(IntsExpr a, IntsExpr b);
IntsExpr operator*(IntsExpr a, IntsExpr b);
BoolExpr operator!(AnyAttr<bool> flag);

// --- Values ----------------------------------------------------------------------------------------------------------

class Expr {
 public:
  enum class Kind { kValue, kSplat, kNumber, kOp, kFold, kComputed };

  // An attribute of an op. In a pattern a letter takes the attribute's value, and any other expression must equal it.
  // An implied attribute is determined by the rest and is not compared.
  struct Attr {
    std::string name;
    int slot = -1;
    bool implied = false;
    std::function<Attribute(const Match&)> value;
  };
  // Returns true if the op of x with these attributes would be x.
  using IsIdentity = bool (*)(Value x, const AttributeMap& attributes);

  Expr(AnyValue x);     // NOLINT: letters and numbers are expressions
  Expr(AnySplat c);     // NOLINT
  Expr(double number);  // NOLINT
  // Requires an entry in `attrs` for each attribute of the op.
  Expr(const OpDef& op, std::vector<Expr> operands, std::vector<Attr> attrs = {}, IsIdentity is_identity = nullptr);

  // Defined in expressions.cc, so that tables of rules do not inline their code many times.
  Expr(const Expr& other);
  Expr(Expr&& other) noexcept;
  Expr& operator=(const Expr& other);
  Expr& operator=(Expr&& other) noexcept;
  ~Expr();

  friend Expr Only(Expr e);
  friend Expr As(AnyValue name, Expr e);
  friend Expr Fold(Expr e);
  friend Expr Computed(std::function<double(const Match&)> number);

  Kind kind() const { return kind_; }
  int slot() const { return slot_; }
  double number() const { return number_; }
  const OpDef& op() const { return *op_; }  // requires kOp
  const std::vector<Expr>& operands() const { return operands_; }
  const std::vector<Attr>& attrs() const { return attrs_; }
  IsIdentity is_identity() const { return is_identity_; }
  bool only_use() const { return only_use_; }
  int name() const { return name_; }  // the slot of the value that As() names it, or -1
  const std::function<double(const Match&)>& computed() const { return computed_; }

 private:
  explicit Expr(Kind kind);
  Kind kind_;
  int slot_ = -1;
  double number_ = 0;
  const OpDef* op_ = nullptr;
  std::vector<Expr> operands_;
  std::vector<Attr> attrs_;
  IsIdentity is_identity_ = nullptr;
  bool only_use_ = false;
  int name_ = -1;
  std::function<double(const Match&)> computed_;
};

// Described at the top of this file.
Expr Only(Expr e);
Expr As(AnyValue name, Expr e);
Expr Fold(Expr e);
Expr Computed(std::function<double(const Match&)> number);

// --- Ops: one function for each op that rules use --------------------------------------------------------------------

Expr operator+(Expr x, Expr y);
Expr operator-(Expr x, Expr y);
Expr operator*(Expr x, Expr y);
Expr operator/(Expr x, Expr y);
Expr operator-(Expr x);
Expr operator&(Expr x, Expr y);
Expr operator|(Expr x, Expr y);
Expr operator!(Expr x);
Expr Max(Expr x, Expr y);
Expr Min(Expr x, Expr y);
Expr Pow(Expr x, Expr y);
Expr Abs(Expr x);
Expr Relu(Expr x);
Expr Compare(Expr x, Expr y, AttrExpr<std::string> direction);
Expr Select(Expr condition, Expr x, Expr y);
Expr Convert(Expr x, AttrExpr<DType> dtype);
Expr Bitcast(Expr x, AttrExpr<DType> dtype);
Expr Transpose(Expr x, IntsExpr permutation);
Expr Concat(std::vector<Expr> xs, AttrExpr<int64_t> dim);
Expr Pad(Expr x, IntsExpr low, IntsExpr high, AttrExpr<double> value);
Expr ReduceSum(Expr x, IntsExpr dims);
Expr ReduceMax(Expr x, IntsExpr dims);
Expr ReduceMin(Expr x, IntsExpr dims);
Expr Reduce(const OpDef& op, Expr x, IntsExpr dims);  // `op` is any reduction
// A matmul without `sum_batch`; and the sum over a batch of the products of x transposed and y.
Expr MatMul(Expr x, Expr y, BoolExpr transpose_a, BoolExpr transpose_b, BoolExpr wide_result);
Expr SumOfMatMuls(Expr x, Expr y, BoolExpr wide_result);

// The result's shape is implied: in a replacement it is the shape of the replaced value.
Expr Reshape(Expr x);
Expr Broadcast(Expr x, IntsExpr dims);
Expr Slice(Expr x, IntsExpr start, IntsExpr stride);

// Collectives of one operand, in no bucket and without a wire.
Expr AllReduce(Expr x, AttrExpr<std::string> axis, AttrExpr<std::string> kind);
Expr ReduceScatter(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim, AttrExpr<std::string> kind);
Expr AllGather(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim);
Expr Shard(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim);
Expr AllToAll(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> split_dim, AttrExpr<int64_t> concat_dim);
Expr CollectiveBroadcast(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> root);
Expr CollectiveGather(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim, AttrExpr<int64_t> root);
Expr CollectiveScatter(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim, AttrExpr<int64_t> root);

// --- Conditions ------------------------------------------------------------------------------------------------------

using Condition = std::function<bool(const Match&)>;

Condition SameShape(AnyValue x);  // x has the shape of the replaced value

// --- Applying a rule -------------------------------------------------------------------------------------------------

// Returns a match of `pattern` at `node` for which `condition`, which may be empty, holds; nullopt if there is none.
std::optional<Match> FindMatch(const Expr& pattern, const Condition& condition, Node& node, const Graph& graph);

// Builds `replacement` for a match. Returns null, and builds nothing, if an expression in it cannot be folded.
Value BuildReplacement(const Expr& replacement, const Match& match, Builder& b);

template <typename T>
AttrExpr<Ints> AnyAttr<T>::operator[](AnyAttr<Ints> places) const {
  return {[list = *this, places](const Match& m) {
    Ints result;
    for (int64_t place : m[places]) result.push_back(m[list][static_cast<size_t>(place)]);
    return result;
  }};
}

}  // namespace lockstep::passes
