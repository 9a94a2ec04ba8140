// The notation of rewrite rules. A rule is written as it is said: what is found, what takes its place, and under which
// condition.
//
//   {"mul_mul", kFloats, (x * c0) * c1, x * Fold(c0 * c1), ScalesExactly(c0, c1)}
//
// In what is found,
//   x, y, z     (AnyValue) stand for any value: the same letter for the same value
//   c0, c1      (AnySplat) stand for a constant of equal elements, perhaps broadcast: the same one for the same bits
//   p, q, ...   (AnyAttr)  stand for an attribute of an op: the same one for the same bits
//   2, -0.0     stand for a constant of elements that equal this number; 0.0 and -0.0 are different
//   x + y       stands for a value of this op. Ops with kCommutative match with their operands in either order
//   Only(e)     is e where nobody else uses it: it goes when the rule has been applied
//   As(y, e)    is e, and y is its name.
// In what takes its place the letters stand for what they were found to be. Numbers, Fold(c0 * c1) (an expression of
// constants, computed now) and Computed(f) are constants of the type of their neighbour. Attributes are expressions
// too: p[q], a + s * b, !t.
//
// An Expr is a value that is built once, when the tables are; matching walks it. Constant data; any thread.

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
  AttrExpr<Ints> operator[](AnyAttr<Ints> places) const;  // of lists: the elements at these places
};

// What the letters of a pattern were found to be, at one node.
class Match {
 public:
  static constexpr size_t kSlots = 7;

  explicit Match(Node& node) : node_(&node) {}
  Node& node() const { return *node_; }  // that is replaced
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
    Value value;  // as it was found, of the shape that it has there
    std::optional<Tensor> scalar;
  };
  Node* node_;
  std::array<Value, kSlots> values_;
  std::array<Splat, kSlots> splats_;
  std::array<std::optional<Attribute>, kSlots> attrs_;
  std::vector<Value> numbers_;  // the constants that numbers were found to be
};

// Of the same type and bits: of floats -0.0 is not 0.0, and a NaN is itself.
bool SameAttribute(const Attribute& a, const Attribute& b);

// --- Attributes ------------------------------------------------------------------------------------------------------

// A letter, or a computation from what the letters are.
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

// Of lists, element by element.
IntsExpr operator+(IntsExpr a, IntsExpr b);
IntsExpr operator*(IntsExpr a, IntsExpr b);
BoolExpr operator!(AnyAttr<bool> flag);

// --- Values ----------------------------------------------------------------------------------------------------------

class Expr {
 public:
  enum class Kind { kValue, kSplat, kNumber, kOp, kFold, kComputed };

  // An attribute of an op. Of what is found, a letter takes the value, anything else must be equal; an implied
  // attribute is what it has to be and is not looked at.
  struct Attr {
    std::string name;
    int slot = -1;
    bool implied = false;
    std::function<Attribute(const Match&)> value;
  };
  // Whether the op, made of x with these attributes, would be x.
  using IsIdentity = bool (*)(Value x, const AttributeMap& attributes);

  Expr(AnyValue x);     // NOLINT: letters and numbers are expressions
  Expr(AnySplat c);     // NOLINT
  Expr(double number);  // NOLINT
  // Names all attributes of the op.
  Expr(const OpDef& op, std::vector<Expr> operands, std::vector<Attr> attrs = {}, IsIdentity is_identity = nullptr);

  // In expressions.cc, so that a table of many does not hold their code many times.
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
  const OpDef& op() const { return *op_; }  // of a kOp
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

// What these say is told above.
Expr Only(Expr e);
Expr As(AnyValue name, Expr e);
Expr Fold(Expr e);
Expr Computed(std::function<double(const Match&)> number);

// --- Ops: one function for each that rules are about -----------------------------------------------------------------

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
Expr Reduce(const OpDef& op, Expr x, IntsExpr dims);  // of any op that is a reduction
// One that sums no batch; and the sum over a batch of the products of x transposed, and y.
Expr MatMul(Expr x, Expr y, BoolExpr transpose_a, BoolExpr transpose_b, BoolExpr wide_result);
Expr SumOfMatMuls(Expr x, Expr y, BoolExpr wide_result);

// Of these the shape of the result is implied: of a replacement it is the shape of what is replaced.
Expr Reshape(Expr x);
Expr Broadcast(Expr x, IntsExpr dims);
Expr Slice(Expr x, IntsExpr start, IntsExpr stride);

// Collectives of one operand that are in no bucket yet, and have no wire.
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

Condition SameShape(AnyValue x);  // as what it would replace

// --- What a rule does ------------------------------------------------------------------------------------------------

// How `pattern` matches `node` such that `condition`, which may be empty, holds; nullopt if it does not.
std::optional<Match> FindMatch(const Expr& pattern, const Condition& condition, Node& node, const Graph& graph);

// Builds `replacement` for what was matched. Null, and nothing built, if something in it cannot be folded.
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
