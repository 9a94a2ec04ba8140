// Random bits, of which all random numbers are made, and dropout, which draws random numbers in training.

#include "core/builder.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"
#include "core/philox.h"

namespace lockstep {
namespace {

// --- random_bits -----------------------------------------------------------------------------------------------------

absl::Status InferRandomBits(InferContext& c) {
  RETURN_IF_ERROR(ops::CheckSameTypes(c, "C1"));
  if (c.dtype(0) != DType::kI64) return c.Error("C2") << "operand " << c.operand(0) << ", expected i64";
  const int64_t stream = c.attr<int64_t>("stream"), word = c.attr<int64_t>("word");
  if (stream < 0 || stream >= kMaxRandomStreams)
    return c.Error("C3") << "stream is " << stream << ", expected 0 to " << kMaxRandomStreams - 1;
  if (word < 0 || word > 3) return c.Error("C4") << "word is " << word << ", expected 0 to 3";
  return c.SetResult(DType::kU32, c.shape(0));
}

absl::Status EvalRandomBits(EvalContext& c) {
  const auto seed = c.operand(0).data<int64_t>(), step = c.operand(1).data<int64_t>();
  const auto index = c.operand(2).data<int64_t>();
  const auto out = c.result().mutable_data<uint32_t>();
  const auto word = static_cast<size_t>(c.attr<int64_t>("word"));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = RandomWords(seed[i], step[i], index[i], c.attr<int64_t>("stream"))[word];
  return absl::OkStatus();
}

// --- dropout ---------------------------------------------------------------------------------------------------------

absl::Status InferDropout(InferContext& c) {
  if (!IsFloat(c.dtype(0))) return c.Error("C1") << "x is " << c.operand(0) << ", expected floats";
  const bool is_ratio = c.dtype(1) == DType::kF32 || c.dtype(1) == DType::kF64;
  if (!is_ratio || c.shape(1).rank() != 0)
    return c.Error("C2") << "ratio is " << c.operand(1) << ", expected f32[] or f64[]";
  return c.SetResults({c.operand(0), {DType::kBool, c.shape(0)}});
}

absl::Status EvalDropout(EvalContext& c) {
  c.result(0) = c.operand(0);
  for (bool& is_kept : c.result(1).mutable_data<bool>()) is_kept = true;
  return absl::OkStatus();
}

// Placed like an elementwise op, with a replicated ratio.
void PlaceDropout(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const Placement placement = c.operand(0).is_split() ? c.operand(0) : Placement::Replicated();
  c.Require(0, placement);
  c.Require(1, Placement::Replicated());
  c.Result(placement);
}

}  // namespace

//===-- random_bits -----------------------------------------------------------------------------------------------===//
const OpDef& RandomBitsOp() {
  static const OpDef def =
      OpDef("random_bits")
          .Doc(
              "32 random bits, which depend on the operands and attributes only: a word of Philox4x32-10 "
              "(core/philox.h). core/random.h makes random numbers of them.")
          .Operand("seed")
          .Operand("step")
          .Operand("index")
          .Attr<int64_t>("stream", "the number of this draw among those of the program")
          .OptionalAttr<int64_t>("word", 0, "the number of the word, of the four for an index")
          .Trait(kElementwise)
          .Trait(kExpensive)
          .Constraint("C1", "seed, step and index have the same type")
          .Constraint("C2", "they are i64; only 40 bits of a step are used")
          .Constraint("C3", "stream is at least 0 and below 2^24")
          .Constraint("C4", "word is 0, 1, 2 or 3")
          .Infer(InferRandomBits)
          .Eval(EvalRandomBits)
          .Precision(PrecisionRule::kAsDeclared)
          .NoGradient("its operands are integers")
          .Place([](PlacementContext& c) { ops::PlaceElementwise(c); });
  return def;
}

//===-- dropout ---------------------------------------------------------------------------------------------------===//
const OpDef& DropoutOp() {
  static const OpDef def =
      OpDef("dropout")
          .Doc(
              "x itself, as in inference. The pass training-mode replaces it by random draws: each element is set to "
              "zero with the probability `ratio`, and the others are divided by 1 - ratio.")
          .Operand("x")
          .Operand("ratio")
          .OptionalAttr<int64_t>("seed", 0, "changes the program's seed for this draw, unless it is 0")
          .Result("result")
          .Result("mask")
          .Trait(kOpaque)
          .Constraint("C1", "x is of floats")
          .Constraint("C2", "ratio is f32[] or f64[]")
          .Infer(InferDropout)
          .Eval(EvalDropout)
          .Precision(PrecisionRule::kFollows)
          .Vjp([](VjpContext& c) {
            if (c.grad(0)) c.Contribute(0, c.grad(0));
          })
          .Place(PlaceDropout)
          .Decompose([](DecomposeContext& c) -> std::vector<Value> {
            const Shape& shape = c.operand(0).shape();
            return {c.operand(0), c.b().Splat(1.0, {DType::kBool, shape})};
          });
  return def;
}

}  // namespace lockstep
