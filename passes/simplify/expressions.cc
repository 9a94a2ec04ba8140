// Makes the expressions of rules: letters, ops, attributes.

#include <algorithm>

#include "core/ops/op_list.h"
#include "passes/simplify/notation.h"

namespace lockstep::passes {
namespace {

template <typename T>
Expr::Attr Attr(std::string name, const AttrExpr<T>& e) {
  return {std::move(name), e.slot(), /*implied=*/false, [e](const Match& m) { return Attribute(e(m)); }};
}

Expr::Attr Implied(std::string name, std::function<Attribute(const Match&)> value) {
  return {std::move(name), -1, /*implied=*/true, std::move(value)};
}

Expr::Attr ImpliedShape() {
  return Implied("shape", [](const Match& m) { return Attribute(m.node().type().shape.dims()); });
}

Expr::Attr NoBucket() { return Attr("bucket", AttrExpr<int64_t>(-1)); }

bool HasThatShape(Value x, const AttributeMap& attributes) {
  return x.shape().dims() == std::get<Ints>(attributes.at("shape"));
}

bool HasThatDType(Value x, const AttributeMap& attributes) {
  return x.dtype() == std::get<DType>(attributes.at("dtype"));
}

bool ReducesNothing(Value, const AttributeMap& attributes) { return std::get<Ints>(attributes.at("dims")).empty(); }

template <typename F>
IntsExpr ElementByElement(IntsExpr a, IntsExpr b, F f) {
  return {[a = std::move(a), b = std::move(b), f](const Match& m) {
    Ints result = a(m);
    const Ints other = b(m);
    std::transform(result.begin(), result.end(), other.begin(), result.begin(), f);
    return result;
  }};
}

}  // namespace

Expr::Expr(Kind kind) : kind_(kind) {}
Expr::Expr(AnyValue x) : kind_(Kind::kValue), slot_(x.slot) {}
Expr::Expr(AnySplat c) : kind_(Kind::kSplat), slot_(c.slot) {}
Expr::Expr(double number) : kind_(Kind::kNumber), number_(number) {}
Expr::Expr(const Expr& other) = default;
Expr::Expr(Expr&& other) noexcept = default;
Expr& Expr::operator=(const Expr& other) = default;
Expr& Expr::operator=(Expr&& other) noexcept = default;
Expr::~Expr() = default;

Expr::Expr(const OpDef& op, std::vector<Expr> operands, std::vector<Attr> attrs, IsIdentity is_identity)
    : kind_(Kind::kOp), op_(&op), operands_(std::move(operands)), attrs_(std::move(attrs)), is_identity_(is_identity) {
  // A rule would lose an attribute that its pattern does not have.
  LOCKSTEP_CHECK(attrs_.size() == op.attribute_defs().size()) << op.name() << " has other attributes";
  for (const Attr& attr : attrs_) LOCKSTEP_CHECK(op.FindAttribute(attr.name)) << op.name() << " has no " << attr.name;
}

Expr Only(Expr e) {
  e.only_use_ = true;
  return e;
}

Expr As(AnyValue name, Expr e) {
  e.name_ = name.slot;
  return e;
}

Expr Fold(Expr e) {
  Expr fold(Expr::Kind::kFold);
  fold.operands_.push_back(std::move(e));
  return fold;
}

Expr Computed(std::function<double(const Match&)> number) {
  Expr computed(Expr::Kind::kComputed);
  computed.computed_ = std::move(number);
  return computed;
}

IntsExpr operator+(IntsExpr a, IntsExpr b) { return ElementByElement(std::move(a), std::move(b), std::plus<>()); }
IntsExpr operator*(IntsExpr a, IntsExpr b) { return ElementByElement(std::move(a), std::move(b), std::multiplies<>()); }
BoolExpr operator!(AnyAttr<bool> flag) {
  return {[flag](const Match& m) { return !m[flag]; }};
}

Expr operator+(Expr x, Expr y) { return Expr(AddOp(), {std::move(x), std::move(y)}); }
Expr operator-(Expr x, Expr y) { return Expr(SubOp(), {std::move(x), std::move(y)}); }
Expr operator*(Expr x, Expr y) { return Expr(MulOp(), {std::move(x), std::move(y)}); }
Expr operator/(Expr x, Expr y) { return Expr(DivOp(), {std::move(x), std::move(y)}); }
Expr operator-(Expr x) { return Expr(NegOp(), {std::move(x)}); }
Expr operator&(Expr x, Expr y) { return Expr(AndOp(), {std::move(x), std::move(y)}); }
Expr operator|(Expr x, Expr y) { return Expr(OrOp(), {std::move(x), std::move(y)}); }
Expr operator!(Expr x) { return Expr(NotOp(), {std::move(x)}); }
Expr Max(Expr x, Expr y) { return Expr(MaxOp(), {std::move(x), std::move(y)}); }
Expr Min(Expr x, Expr y) { return Expr(MinOp(), {std::move(x), std::move(y)}); }
Expr Pow(Expr x, Expr y) { return Expr(PowOp(), {std::move(x), std::move(y)}); }
Expr Abs(Expr x) { return Expr(AbsOp(), {std::move(x)}); }
Expr Relu(Expr x) { return Expr(ReluOp(), {std::move(x)}); }

Expr Compare(Expr x, Expr y, AttrExpr<std::string> direction) {
  return Expr(CompareOp(), {std::move(x), std::move(y)}, {Attr("direction", direction)});
}
Expr Select(Expr condition, Expr x, Expr y) {
  return Expr(SelectOp(), {std::move(condition), std::move(x), std::move(y)});
}
Expr Convert(Expr x, AttrExpr<DType> dtype) {
  return Expr(ConvertOp(), {std::move(x)}, {Attr("dtype", dtype), Attr("rounds_parts", BoolExpr(false))}, HasThatDType);
}
Expr Bitcast(Expr x, AttrExpr<DType> dtype) { return Expr(BitcastOp(), {std::move(x)}, {Attr("dtype", dtype)}); }
Expr Transpose(Expr x, IntsExpr permutation) {
  return Expr(TransposeOp(), {std::move(x)}, {Attr("permutation", permutation)});
}
Expr Concat(std::vector<Expr> xs, AttrExpr<int64_t> dim) { return Expr(ConcatOp(), std::move(xs), {Attr("dim", dim)}); }
Expr Pad(Expr x, IntsExpr low, IntsExpr high, AttrExpr<double> value) {
  return Expr(PadOp(), {std::move(x)}, {Attr("low", low), Attr("high", high), Attr("value", value)});
}
Expr Reduce(const OpDef& op, Expr x, IntsExpr dims) {
  return Expr(op, {std::move(x)}, {Attr("dims", dims)}, ReducesNothing);
}
Expr ReduceSum(Expr x, IntsExpr dims) { return Reduce(ReduceSumOp(), std::move(x), dims); }
Expr ReduceMax(Expr x, IntsExpr dims) { return Reduce(ReduceMaxOp(), std::move(x), dims); }
Expr ReduceMin(Expr x, IntsExpr dims) { return Reduce(ReduceMinOp(), std::move(x), dims); }
Expr MatMul(Expr x, Expr y, BoolExpr transpose_a, BoolExpr transpose_b, BoolExpr wide_result) {
  return Expr(MatMulOp(), {std::move(x), std::move(y)},
              {Attr("transpose_a", transpose_a), Attr("transpose_b", transpose_b), Attr("sum_batch", BoolExpr(false)),
               Attr("wide_result", wide_result)});
}
Expr SumOfMatMuls(Expr x, Expr y, BoolExpr wide_result) {
  return Expr(MatMulOp(), {std::move(x), std::move(y)},
              {Attr("transpose_a", BoolExpr(true)), Attr("transpose_b", BoolExpr(false)),
               Attr("sum_batch", BoolExpr(true)), Attr("wide_result", wide_result)});
}

Expr Reshape(Expr x) { return Expr(ReshapeOp(), {std::move(x)}, {ImpliedShape()}, HasThatShape); }
Expr Broadcast(Expr x, IntsExpr dims) {
  return Expr(BroadcastOp(), {std::move(x)}, {Attr("dims", dims), ImpliedShape()}, HasThatShape);
}

Expr Slice(Expr x, IntsExpr start, IntsExpr stride) {
  // An empty slice may start after the last element: a replacement starts at 0 instead.
  Expr::Attr start_attr = Attr("start", start);
  start_attr.value = [start](const Match& m) {
    Ints result = start(m);
    for (size_t i = 0; i < result.size(); ++i) {
      if (m.node().type().shape.dims()[i] == 0) result[i] = 0;
    }
    return Attribute(result);
  };
  const auto limit = [start = start_attr.value, stride](const Match& m) {
    Ints result = std::get<Ints>(start(m));
    const Ints strides = stride(m);
    for (size_t i = 0; i < result.size(); ++i) {
      const int64_t extent = m.node().type().shape.dims()[i];
      if (extent > 0) result[i] += (extent - 1) * strides[i] + 1;
    }
    return Attribute(result);
  };
  return Expr(SliceOp(), {std::move(x)}, {start_attr, Implied("limit", limit), Attr("stride", stride)});
}

Expr AllReduce(Expr x, AttrExpr<std::string> axis, AttrExpr<std::string> kind) {
  return Expr(AllReduceOp(), {std::move(x)},
              {Attr("axis", axis), Attr("kind", kind), NoBucket(), Attr("wire", AttrExpr<std::string>("")),
               Attr("when", AttrExpr<std::string>(""))});
}
Expr ReduceScatter(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim, AttrExpr<std::string> kind) {
  return Expr(ReduceScatterOp(), {std::move(x)},
              {Attr("axis", axis), Attr("dim", dim), Attr("kind", kind), NoBucket()});
}
Expr AllGather(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim) {
  return Expr(AllGatherOp(), {std::move(x)}, {Attr("axis", axis), Attr("dim", dim), NoBucket()});
}
Expr Shard(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim) {
  return Expr(ShardOp(), {std::move(x)}, {Attr("axis", axis), Attr("dim", dim)});
}
Expr AllToAll(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> split_dim, AttrExpr<int64_t> concat_dim) {
  return Expr(AllToAllOp(), {std::move(x)},
              {Attr("axis", axis), Attr("split_dim", split_dim), Attr("concat_dim", concat_dim)});
}
Expr CollectiveBroadcast(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> root) {
  return Expr(CollectiveBroadcastOp(), {std::move(x)}, {Attr("axis", axis), Attr("root", root)});
}
Expr CollectiveGather(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim, AttrExpr<int64_t> root) {
  return Expr(CollectiveGatherOp(), {std::move(x)}, {Attr("axis", axis), Attr("dim", dim), Attr("root", root)});
}
Expr CollectiveScatter(Expr x, AttrExpr<std::string> axis, AttrExpr<int64_t> dim, AttrExpr<int64_t> root) {
  return Expr(CollectiveScatterOp(), {std::move(x)}, {Attr("axis", axis), Attr("dim", dim), Attr("root", root)});
}

Condition SameShape(AnyValue x) {
  return [x](const Match& m) { return m[x].shape() == m.node().type().shape; };
}

}  // namespace lockstep::passes
