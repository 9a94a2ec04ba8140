// Collectives that reduce. Collectives are ops in which all ranks of one mesh axis take part. Their reference meaning
// is a function of all ranks' tensors. Reductions run in rank order, in float for 16-bit floats and else in the dtype
// itself, so that replicas are bitwise equal.
//
// Gradients are those of the sum of all ranks' losses: the gradient of a rank's operand includes the losses of its
// peers. passes/distribute runs after autodiff, so these gradients are used only for graphs that contain collectives
// when they are differentiated.

#include "core/builder.h"
#include "core/ops/collective_rules.h"
#include "core/ops/combine.h"
#include "core/ops/int8_wire.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"

namespace lockstep {
namespace {

// --- Inference -------------------------------------------------------------------------------------------------------

absl::Status CheckKind(const InferContext& c, std::string_view id, std::string_view bool_id) {
  const std::string& name = c.attr<std::string>("kind");
  const std::optional<ReduceKind> kind = ReduceKindFromName(name);
  if (!kind) return c.Error(id) << "kind '" << name << "', expected sum, min, max, prod or mean";
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (c.dtype(i) == DType::kBool && kind != ReduceKind::kMin && kind != ReduceKind::kMax) {
      return c.Error(bool_id) << "kind " << name << " of operand " << c.operand(i);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWire(const InferContext& c) {
  const std::string &wire = c.attr<std::string>("wire"), &kind = c.attr<std::string>("kind");
  if (wire.empty()) return absl::OkStatus();
  if (wire != "bf16" && wire != "int8") return c.Error("C4") << "wire '" << wire << "', expected bf16, int8, or none";
  if (kind != "sum" && (kind != "mean" || wire != "bf16"))
    return c.Error("C4") << "kind " << kind << " with the wire " << wire;
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (c.dtype(i) != DType::kF32) return c.Error("C4") << "operand " << c.operand(i) << " with a wire";
  }
  return absl::OkStatus();
}

absl::Status InferAllReduce(InferContext& c) {
  RETURN_IF_ERROR(ops::CheckAxis(c).status());
  RETURN_IF_ERROR(CheckKind(c, "C2", "C3"));
  RETURN_IF_ERROR(CheckWire(c));
  std::vector<TensorType> types;
  for (size_t i = 0; i < c.num_operands(); ++i) types.push_back(c.operand(i));
  return c.SetResults(std::move(types));
}

// --- Reference meaning -----------------------------------------------------------------------------------------------

template <typename Context>
ReduceKind KindOf(const Context& c) {
  return *ReduceKindFromName(c.template attr<std::string>("kind"));  // valid, because inference checks it
}

// The type in which ranks' elements are combined.
template <typename T>
using RankAccumulator = std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>, float, T>;

// Reduces one element over all ranks, in rank order. get(rank) returns the rank's element.
template <typename T, typename A, typename F>
T ReduceElement(ReduceKind kind, size_t ranks, F get) {
  A sum = static_cast<A>(get(0));
  for (size_t rank = 1; rank < ranks; ++rank) sum = ops::Combine(kind, sum, static_cast<A>(get(rank)));
  if (kind == ReduceKind::kMean) sum = static_cast<A>(sum / static_cast<A>(ranks));
  return ConvertElement<T>(sum);
}

// The element as it is rounded on the wire.
template <typename T>
T OnWire(T element, bool as_bf16) {
  if constexpr (std::is_same_v<T, float>) return as_bf16 ? static_cast<float>(BFloat16(element)) : element;
  else return element;
}

// Operand i reduced over all ranks. If `as_bf16`, elements and results are rounded to bf16 on the wire.
Tensor ReduceRanks(const RanksEvalContext& c, size_t i, bool as_bf16 = false) {
  const ReduceKind kind = KindOf(c);
  Tensor reduced(c.operand(0, i).type());
  DispatchDType(reduced.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    // The mean of integers is the truncated quotient of a sum that does not overflow.
    const bool wide = std::is_integral_v<T> && kind == ReduceKind::kMean;
    const auto out = reduced.mutable_data<T>();
    for (size_t at = 0; at < out.size(); ++at) {
      const auto get = [&](size_t rank) { return OnWire<T>(c.operand(rank, i).data<T>()[at], as_bf16); };
      out[at] = OnWire<T>(wide ? ReduceElement<T, Accumulator<T>>(kind, c.num_ranks(), get)
                               : ReduceElement<T, RankAccumulator<T>>(kind, c.num_ranks(), get),
                          as_bf16);
    }
  });
  return reduced;
}

// The sum of operand i, of f32, over all ranks. Elements and results are rounded on the wire as in int8_wire.h.
Tensor SumInt8(const RanksEvalContext& c, size_t i) {
  Tensor sum(c.operand(0, i).type());
  const auto out = sum.mutable_data<float>();
  for (size_t rank = 0; rank < c.num_ranks(); ++rank) {
    Tensor arrives = c.operand(rank, i);
    const auto of_rank = arrives.mutable_data<float>();
    ops::RoundToInt8Wire(of_rank);
    for (size_t at = 0; at < out.size(); ++at) out[at] = rank == 0 ? of_rank[at] : out[at] + of_rank[at];
  }
  ops::RoundToInt8Wire(out);
  return sum;
}

absl::Status EvalAllReduce(RanksEvalContext& c) {
  const std::string wire = c.num_ranks() > 1 ? c.attr<std::string>("wire") : "";
  for (size_t i = 0; i < c.num_operands(); ++i) {
    const Tensor reduced = wire == "int8" ? SumInt8(c, i) : ReduceRanks(c, i, wire == "bf16");
    for (size_t rank = 0; rank < c.num_ranks(); ++rank) c.result(rank, i) = reduced;
  }
  return absl::OkStatus();
}

absl::Status EvalReduceScatter(RanksEvalContext& c) {
  for (size_t i = 0; i < c.num_operands(); ++i) {
    const Tensor reduced = ReduceRanks(c, i);
    const ops::SliceCopy copy(c.result(0, i), reduced, c.attr<int64_t>("dim"));
    for (size_t rank = 0; rank < c.num_ranks(); ++rank) copy.OutOf(reduced, c.result(rank, i), rank);
  }
  return absl::OkStatus();
}

// --- Gradients -------------------------------------------------------------------------------------------------------

// The gradient of y = all_reduce(x) of the kinds that are not linear; g is already summed over the ranks.
Value NonlinearAllReduceGradient(Builder& b, std::string_view axis, ReduceKind kind, Value x, Value y, Value g) {
  const Value one = b.SplatLike(1.0, x), zero = b.SplatLike(0.0, x);
  if (kind != ReduceKind::kProd) {
    // The gradient is shared equally between the ranks that hold the extremum.
    const Value mask = b.Convert(b.Compare(x, y, "eq"), x.dtype());
    return b.Div(b.Mul(mask, g), b.AllReduce(mask, axis, ReduceKind::kSum));
  }
  // The derivative is the product of the other ranks' factors: see the gradient of reduce_prod.
  const Value is_zero = b.Compare(x, zero, "eq");
  const Value nonzero = b.Select(is_zero, one, x);
  const Value zeros = b.AllReduce(b.Convert(is_zero, x.dtype()), axis, ReduceKind::kSum);
  const Value if_only_zero = b.Select(b.Compare(zeros, one, "eq"), b.AllReduce(nonzero, axis, ReduceKind::kProd), zero);
  return b.Mul(g, b.Select(is_zero, if_only_zero, b.Div(y, nonzero)));
}

void AllReduceVjp(VjpContext& c) {
  Builder& b = c.b();
  const std::string& axis = c.attr<std::string>("axis");
  const ReduceKind kind = KindOf(c);
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!c.grad(i)) continue;
    const Value g = b.AllReduce(c.grad(i), axis, kind == ReduceKind::kMean ? kind : ReduceKind::kSum);
    const bool linear = kind == ReduceKind::kSum || kind == ReduceKind::kMean;
    c.Contribute(i, linear ? g : NonlinearAllReduceGradient(b, axis, kind, c.operand(i), c.result(i), g));
  }
}

void ReduceScatterVjp(VjpContext& c) {
  Builder& b = c.b();
  const ReduceKind kind = KindOf(c);
  if (kind != ReduceKind::kSum && kind != ReduceKind::kMean) {
    return c.Fail("kind " + c.attr<std::string>("kind") + " is not linear; use all_reduce and shard");
  }
  const int64_t dim = c.attr<int64_t>("dim");
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (!c.grad(i)) continue;
    const Value whole = b.AllGather(c.grad(i), c.attr<std::string>("axis"), dim);
    if (!whole) return;
    const double ranks = static_cast<double>(whole.shape()[dim]) / static_cast<double>(c.grad(i).shape()[dim]);
    c.Contribute(i, kind == ReduceKind::kMean ? b.Scale(whole, 1.0 / ranks) : whole);
  }
}

// --- Placement -------------------------------------------------------------------------------------------------------

bool IsLinear(ReduceKind kind) { return kind == ReduceKind::kSum || kind == ReduceKind::kMean; }

// Places a reduction of operand i along its own axis as `result`. The operand must be partial of the same kind, or
// local. It may be replicated if the kind leaves equal values unchanged (min, max, mean).
void PlaceReductionOverRanks(PlacementContext& c, size_t i, Placement result) {
  const Placement& x = c.operand(i);
  const ReduceKind kind = KindOf(c);
  const bool keeps_equal = kind != ReduceKind::kSum && kind != ReduceKind::kProd;
  if (!x.is_partial(kind) && !x.is_local() && !(x.is_replicated() && keeps_equal)) {
    c.Fail("operand " + std::to_string(i) + " is " + x.ToString() + ", which kind=" + c.attr<std::string>("kind") +
           " cannot reduce to the whole value");
  }
  c.Result(i, result);
}

// Along another axis the op is elementwise. A partial operand stays partial if its kind commutes with the op's kind.
// The truncated mean of integers commutes with no kind, including itself.
void PlaceReductionAlongOtherAxis(PlacementContext& c, size_t i) {
  const Placement& x = c.operand(i);
  const auto truncates = [&](ReduceKind kind) { return kind == ReduceKind::kMean && !IsFloat(c.dtype(i)); };
  const auto commute = [&](ReduceKind a, ReduceKind b) {
    return !truncates(a) && !truncates(b) && (a == b || (IsLinear(a) && IsLinear(b)));
  };
  const bool passes = !x.is_partial() || commute(x.reduce(), KindOf(c));
  if (!passes) c.Require(i, Placement::Replicated());
  c.Result(i, passes ? x : Placement::Replicated());
}

void PlaceAllReduce(PlacementContext& c) {
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (ops::IsOwnAxis(c)) PlaceReductionOverRanks(c, i, Placement::Replicated());
    else PlaceReductionAlongOtherAxis(c, i);
  }
}

void PlaceReduceScatter(PlacementContext& c) {
  const int64_t dim = c.attr<int64_t>("dim");
  for (size_t i = 0; i < c.num_operands(); ++i) {
    if (ops::IsOwnAxis(c)) PlaceReductionOverRanks(c, i, Placement::Split(dim));
    else if (c.operand(i).is_split(dim)) ops::PlaceMovementAlongOtherAxis(c, i, dim);
    else PlaceReductionAlongOtherAxis(c, i);
  }
}

}  // namespace

//===-- all_reduce ------------------------------------------------------------------------------------------------===//
const OpDef& AllReduceOp() {
  static const OpDef def =
      OpDef("all_reduce")
          .Doc(
              "Each operand reduced over the ranks of a mesh axis, elementwise and in rank order; one result for each "
              "operand. With a wire, operands and results are rounded to that dtype and added in f32; with one rank "
              "nothing is rounded. With int8, each block of 256 elements has a scale, its largest magnitude / 127; if "
              "an element of a block is not finite, the whole block becomes NaN.")
          .Variadic("xs")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<std::string>("kind", "sum, min, max, prod or mean")
          .OptionalAttr<int64_t>("bucket", -1, ops::kBucketDoc)
          .OptionalAttr<std::string>("wire", "", "the dtype on the wire; empty: that of the operands")
          .OptionalAttr<std::string>(
              "when", "",
              "a setting of the program: if it is 0, nothing is communicated, and the result may "
              "be anything; empty: always")
          .Communicates(CollectiveOp::kAllReduce)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "kind is one of sum, min, max, prod, mean")
          .Constraint("C3", "the kind of bool operands is min or max")
          .Constraint("C4", "a wire is bf16 or int8; then operands are f32, and the kind is sum, or mean if bf16")
          .Infer(InferAllReduce)
          .EvalAcrossRanks(EvalAllReduce)
          .Vjp(AllReduceVjp)
          .Place(PlaceAllReduce);
  return def;
}

//===-- reduce_scatter --------------------------------------------------------------------------------------------===//
const OpDef& ReduceScatterOp() {
  static const OpDef def =
      OpDef("reduce_scatter")
          .Doc(
              "Each operand reduced over the ranks of a mesh axis, elementwise and in rank order; each rank keeps its "
              "slice along dim. One result for each operand.")
          .Variadic("xs")
          .Attr<std::string>("axis", "of the mesh")
          .Attr<int64_t>("dim", "the dimension of the slices")
          .Attr<std::string>("kind", "sum, min, max, prod or mean")
          .OptionalAttr<int64_t>("bucket", -1, ops::kBucketDoc)
          .Communicates(CollectiveOp::kReduceScatter)
          .Constraint("C1", ops::kAxisConstraint)
          .Constraint("C2", "dim is a dimension of each operand")
          .Constraint("C3", "the extent of dim is divisible by the size of axis")
          .Constraint("C4", "kind is one of sum, min, max, prod, mean")
          .Constraint("C5", "the kind of bool operands is min or max")
          .Infer([](InferContext& c) -> absl::Status {
            std::vector<TensorType> slices;
            for (size_t i = 0; i < c.num_operands(); ++i) {
              ASSIGN_OR_RETURN(slices.emplace_back(), ops::InferSlice(c, i));
            }
            RETURN_IF_ERROR(CheckKind(c, "C4", "C5"));
            return c.SetResults(std::move(slices));
          })
          .EvalAcrossRanks(EvalReduceScatter)
          .Vjp(ReduceScatterVjp)
          .Place(PlaceReduceScatter);
  return def;
}

}  // namespace lockstep
