#include "backends/codegen/emit_element.h"

#include <string_view>
#include <unordered_map>

#include "backends/loops/loop_info.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/Module.h"

namespace lockstep {

using Arguments = std::span<llvm::Value* const>;

llvm::Type* ElementEmitter::StoredType(DType dtype) {
  switch (dtype) {
    case DType::kF64: return b_.getDoubleTy();
    case DType::kF32: return b_.getFloatTy();
    case DType::kF16: return b_.getHalfTy();
    case DType::kBF16: return b_.getInt16Ty();
    default: return b_.getIntNTy(static_cast<unsigned>(SizeOf(dtype) * 8));
  }
}

llvm::Type* ElementEmitter::RegisterType(DType dtype) {
  if (dtype == DType::kF16 || dtype == DType::kBF16) return b_.getFloatTy();
  return dtype == DType::kBool ? b_.getInt1Ty() : StoredType(dtype);
}

llvm::Value* ElementEmitter::FromStored(DType dtype, llvm::Value* stored) {
  llvm::Type* type = stored->getType()->getWithNewType(RegisterType(dtype));
  if (dtype == DType::kF16) return b_.CreateFPExt(stored, type);
  if (dtype == DType::kBool) return b_.CreateICmpNE(stored, Constant(stored, 0));
  if (dtype != DType::kBF16) return stored;
  llvm::Value* wide = b_.CreateZExt(stored, stored->getType()->getWithNewType(b_.getInt32Ty()));
  return b_.CreateBitCast(b_.CreateShl(wide, Constant(wide, 16)), type);
}

llvm::Value* ElementEmitter::ToStored(DType dtype, llvm::Value* value) {
  llvm::Type* type = value->getType()->getWithNewType(StoredType(dtype));
  if (dtype == DType::kF16) return b_.CreateFPTrunc(value, type);
  if (dtype == DType::kBool) return b_.CreateZExt(value, type);
  if (dtype != DType::kBF16) return value;
  if (target_.to_bf16 != nullptr) return target_.to_bf16(b_, value);
  // Rounds to nearest, ties to even: adds 0x7fff plus the last bit that stays, and lets the carry round up.
  llvm::Value* bits = b_.CreateBitCast(value, value->getType()->getWithNewType(b_.getInt32Ty()));
  llvm::Value* odd = b_.CreateAnd(b_.CreateLShr(bits, Constant(bits, 16)), Constant(bits, 1));
  llvm::Value* rounded =
      b_.CreateLShr(b_.CreateAdd(bits, b_.CreateAdd(odd, Constant(bits, 0x7fff))), Constant(bits, 16));
  rounded = b_.CreateSelect(b_.CreateFCmpUNO(value, value), Constant(bits, 0x7fc0), rounded);
  return b_.CreateTrunc(rounded, type);
}

llvm::Value* ElementEmitter::Constant(llvm::Value* like, double value) {
  llvm::Type* type = like->getType();
  if (type->isFPOrFPVectorTy()) return llvm::ConstantFP::get(type, value);
  return llvm::ConstantInt::get(type, static_cast<uint64_t>(static_cast<int64_t>(value)), true);
}

void ElementEmitter::ReportIfAny(llvm::Value* condition) {
  if (active_ && condition->getType()->isVectorTy()) condition = b_.CreateAnd(condition, active_);
  if (condition->getType()->isVectorTy()) condition = b_.CreateOrReduce(condition);
  llvm::Value* before = b_.CreateLoad(b_.getInt32Ty(), error_);
  llvm::Value* is_first = b_.CreateAnd(condition, b_.CreateICmpEQ(before, b_.getInt32(kLoopOk)));
  b_.CreateStore(b_.CreateSelect(is_first, b_.getInt32(static_cast<uint32_t>(error_code_)), before), error_);
}

llvm::Value* ElementEmitter::Compare(DType dtype, Comparison comparison, llvm::Value* x, llvm::Value* y) {
  using P = llvm::CmpInst::Predicate;
  const auto either = [&](P on_floats, P on_signed, P on_unsigned) {
    return b_.CreateCmp(IsFloat(dtype) ? on_floats : IsSigned(dtype) ? on_signed : on_unsigned, x, y);
  };
  switch (comparison) {
    case Comparison::kEq: return either(P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ);
    case Comparison::kNe: return either(P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE);
    case Comparison::kLt: return either(P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT);
    case Comparison::kLe: return either(P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE);
    case Comparison::kGt: return either(P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT);
    case Comparison::kGe: return either(P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE);
  }
  LOCKSTEP_CHECK(false) << "comparison " << static_cast<int>(comparison);
  return nullptr;
}

llvm::Value* ElementEmitter::CallForEachLane(const char* name, Arguments arguments) {
  llvm::Type* scalar = arguments[0]->getType()->getScalarType();
  std::vector<llvm::Type*> types(arguments.size(), scalar);
  llvm::Module* module = b_.GetInsertBlock()->getModule();
  llvm::FunctionCallee callee = module->getOrInsertFunction(name, llvm::FunctionType::get(scalar, types, false));
  auto* function = llvm::cast<llvm::Function>(callee.getCallee());
  function->setDoesNotAccessMemory();
  function->setDoesNotThrow();
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(arguments[0]->getType());
  if (!vector) return b_.CreateCall(callee, llvm::ArrayRef<llvm::Value*>(arguments.data(), arguments.size()));
  llvm::Value* result = llvm::PoisonValue::get(arguments[0]->getType());
  for (unsigned lane = 0; lane < vector->getNumElements(); ++lane) {
    std::vector<llvm::Value*> scalars;
    for (llvm::Value* argument : arguments) scalars.push_back(b_.CreateExtractElement(argument, uint64_t{lane}));
    result = b_.CreateInsertElement(result, b_.CreateCall(callee, scalars), uint64_t{lane});
  }
  return result;
}

llvm::Value* ElementEmitter::Convert(llvm::Value* x, DType from, DType to) {
  if (from == to) return x;
  llvm::Type* type = x->getType()->getWithNewType(RegisterType(to));
  if (to == DType::kBool) {
    return IsFloat(from) ? b_.CreateFCmpUNE(x, Constant(x, 0)) : b_.CreateICmpNE(x, Constant(x, 0));
  }
  if (IsFloat(to)) {
    llvm::Value* result = IsFloat(from)    ? b_.CreateFPCast(x, type)
                          : IsSigned(from) ? b_.CreateSIToFP(x, type)
                                           : b_.CreateUIToFP(x, type);
    // A value converted to a 16-bit float is rounded to 16 bits, also in a register.
    return SizeOf(to) == 2 ? FromStored(to, ToStored(to, result)) : result;
  }
  if (!IsFloat(from)) return IsSigned(from) ? b_.CreateSExtOrTrunc(x, type) : b_.CreateZExtOrTrunc(x, type);
  // Saturates; NaN becomes 0.
  return b_.CreateIntrinsic(IsSigned(to) ? llvm::Intrinsic::fptosi_sat : llvm::Intrinsic::fptoui_sat,
                            {type, x->getType()}, {x});
}

llvm::Value* ElementEmitter::Bitcast(llvm::Value* x, DType from, DType to) {
  if (from == to) return x;
  llvm::Value* stored = ToStored(from, x);
  return FromStored(to, b_.CreateBitCast(stored, stored->getType()->getWithNewType(StoredType(to))));
}

namespace {

using EmitFn = llvm::Value* (*)(ElementEmitter& e, const Node& node, DType dtype, Arguments a);

// Calls libm for f64, and emits a polynomial for narrower floats.
template <llvm::Value* (math::MathEmitter::*kMethod)(llvm::Value*)>
llvm::Value* Transcendental(ElementEmitter& e, const Node& node, DType dtype, Arguments a) {
  if (dtype == DType::kF64) return e.CallForEachLane(node.op_name().c_str(), a);
  return (e.math().*kMethod)(a[0]);
}

template <llvm::Intrinsic::ID kIntrinsic>
llvm::Value* Intrinsic(ElementEmitter& e, const Node&, DType, Arguments a) {
  return e.b().CreateUnaryIntrinsic(kIntrinsic, a[0]);
}

llvm::Value* Sign(ElementEmitter& e, const Node&, DType dtype, Arguments a) {
  auto& b = e.b();
  llvm::Value *x = a[0], *zero = e.Constant(x, 0), *one = e.Constant(x, 1), *minus_one = e.Constant(x, -1);
  llvm::Value* above = e.Compare(dtype, Comparison::kGt, x, zero);
  llvm::Value* sign =
      b.CreateSelect(above, one, b.CreateSelect(e.Compare(dtype, Comparison::kLt, x, zero), minus_one, zero));
  return IsFloat(dtype) ? b.CreateSelect(b.CreateFCmpUNO(x, x), x, sign) : sign;
}

llvm::Value* Sigmoid(ElementEmitter& e, const Node&, DType dtype, Arguments a) {
  if (dtype != DType::kF64) return e.math().Sigmoid(a[0]);
  llvm::Value* negated[] = {e.b().CreateFNeg(a[0])};
  llvm::Value* one = e.Constant(a[0], 1);
  return e.b().CreateFDiv(one, e.b().CreateFAdd(one, e.CallForEachLane("exp", negated)));
}

enum class Libm { kNever, kInF64 };

struct Row {
  std::string_view op;
  EmitFn emit;
  Libm libm = Libm::kNever;
};

// Returns null if there is no code for the op.
const Row* FindRow(std::string_view op) {
  using llvm::Intrinsic::ceil;
  using llvm::Intrinsic::fabs;
  using llvm::Intrinsic::floor;
  static constexpr Row kRows[] = {
      {"neg",
       [](ElementEmitter& e, const Node&, DType d, Arguments a) -> llvm::Value* {
         return IsFloat(d) ? e.b().CreateFNeg(a[0]) : e.b().CreateNeg(a[0]);
       }},
      {"abs",
       [](ElementEmitter& e, const Node&, DType d, Arguments a) -> llvm::Value* {
         if (IsFloat(d)) return e.b().CreateUnaryIntrinsic(fabs, a[0]);
         return e.b().CreateBinaryIntrinsic(llvm::Intrinsic::abs, a[0], e.b().getFalse());
       }},
      {"sign", Sign},
      {"exp", Transcendental<&math::MathEmitter::Exp>, Libm::kInF64},
      {"log", Transcendental<&math::MathEmitter::Log>, Libm::kInF64},
      {"log1p", Transcendental<&math::MathEmitter::Log1p>, Libm::kInF64},
      {"tanh", Transcendental<&math::MathEmitter::Tanh>, Libm::kInF64},
      {"erf", Transcendental<&math::MathEmitter::Erf>, Libm::kInF64},
      {"sigmoid", Sigmoid, Libm::kInF64},
      {"softsign",
       [](ElementEmitter& e, const Node&, DType, Arguments a) -> llvm::Value* {
         auto& b = e.b();
         return b.CreateFDiv(a[0], b.CreateFAdd(e.Constant(a[0], 1), b.CreateUnaryIntrinsic(fabs, a[0])));
       }},
      {"sqrt", Intrinsic<llvm::Intrinsic::sqrt>},
      {"rsqrt",
       [](ElementEmitter& e, const Node&, DType, Arguments a) -> llvm::Value* {
         return e.b().CreateFDiv(e.Constant(a[0], 1), e.b().CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a[0]));
       }},
      {"relu",
       [](ElementEmitter& e, const Node&, DType d, Arguments a) -> llvm::Value* {
         return e.b().CreateSelect(e.Compare(d, Comparison::kLt, a[0], e.Constant(a[0], 0)), e.Constant(a[0], 0), a[0]);
       }},
      {"floor", Intrinsic<floor>},
      {"ceil", Intrinsic<ceil>},
      {"round", Intrinsic<llvm::Intrinsic::roundeven>},
      {"sin", Transcendental<&math::MathEmitter::Sin>, Libm::kInF64},
      {"cos", Transcendental<&math::MathEmitter::Cos>, Libm::kInF64},
      {"tan", Transcendental<&math::MathEmitter::Tan>, Libm::kInF64},
      {"asin", Transcendental<&math::MathEmitter::Asin>, Libm::kInF64},
      {"acos", Transcendental<&math::MathEmitter::Acos>, Libm::kInF64},
      {"atan", Transcendental<&math::MathEmitter::Atan>, Libm::kInF64},
      {"sinh", Transcendental<&math::MathEmitter::Sinh>, Libm::kInF64},
      {"cosh", Transcendental<&math::MathEmitter::Cosh>, Libm::kInF64},
      {"asinh", Transcendental<&math::MathEmitter::Asinh>, Libm::kInF64},
      {"acosh", Transcendental<&math::MathEmitter::Acosh>, Libm::kInF64},
      {"atanh", Transcendental<&math::MathEmitter::Atanh>, Libm::kInF64},
      {"not", [](ElementEmitter& e, const Node&, DType, Arguments a) { return e.b().CreateNot(a[0]); }},
      {"add",
       [](ElementEmitter& e, const Node&, DType d, Arguments a) { return e.Combine(ReduceKind::kSum, d, a[0], a[1]); }},
      {"sub", [](ElementEmitter& e, const Node&, DType d,
                 Arguments a) { return IsFloat(d) ? e.b().CreateFSub(a[0], a[1]) : e.b().CreateSub(a[0], a[1]); }},
      {"mul", [](ElementEmitter& e, const Node&, DType d,
                 Arguments a) { return e.Combine(ReduceKind::kProd, d, a[0], a[1]); }},
      {"div", [](ElementEmitter& e, const Node&, DType d, Arguments a) { return e.Divide(d, a[0], a[1]); }},
      {"fmod", [](ElementEmitter& e, const Node&, DType d, Arguments a) { return e.Fmod(d, a[0], a[1]); },
       Libm::kInF64},
      {"remainder", [](ElementEmitter& e, const Node&, DType d, Arguments a) { return e.Remainder(d, a[0], a[1]); },
       Libm::kInF64},
      {"max", [](ElementEmitter& e, const Node&, DType d, Arguments a) { return e.Max(d, a[0], a[1]); }},
      {"min", [](ElementEmitter& e, const Node&, DType d, Arguments a) { return e.Min(d, a[0], a[1]); }},
      {"pow", [](ElementEmitter& e, const Node&, DType d, Arguments a) { return e.Power(d, a[0], a[1]); },
       Libm::kInF64},
      {"and", [](ElementEmitter& e, const Node&, DType, Arguments a) { return e.b().CreateAnd(a[0], a[1]); }},
      {"or", [](ElementEmitter& e, const Node&, DType, Arguments a) { return e.b().CreateOr(a[0], a[1]); }},
      {"xor", [](ElementEmitter& e, const Node&, DType, Arguments a) { return e.b().CreateXor(a[0], a[1]); }},
      {"shift_left", [](ElementEmitter& e, const Node&, DType, Arguments a) { return e.ShiftLeft(a[0], a[1]); }},
      {"shift_right", [](ElementEmitter& e, const Node&, DType d, Arguments a) { return e.ShiftRight(d, a[0], a[1]); }},
      {"bitcast",
       [](ElementEmitter& e, const Node& n, DType d, Arguments a) { return e.Bitcast(a[0], n.operand(0).dtype(), d); }},
      {"compare",
       [](ElementEmitter& e, const Node& n, DType, Arguments a) {
         return e.Compare(n.operand(0).dtype(), *ComparisonFromName(n.attr<std::string>("direction")), a[0], a[1]);
       }},
      {"within", [](ElementEmitter& e, const Node& n, DType d,
                    Arguments a) { return e.Within(d, a[0], n.attr<int64_t>("low"), n.attr<int64_t>("high")); }},
      {"select",
       [](ElementEmitter& e, const Node&, DType, Arguments a) { return e.b().CreateSelect(a[0], a[1], a[2]); }},
      {"convert",
       [](ElementEmitter& e, const Node& n, DType d, Arguments a) { return e.Convert(a[0], n.operand(0).dtype(), d); }},
      {"random_bits",
       [](ElementEmitter& e, const Node& n, DType,
          Arguments a) { return e.RandomBits(a[0], a[1], a[2], n.attr<int64_t>("stream"), n.attr<int64_t>("word")); }},
  };
  static const auto by_op = [] {
    std::unordered_map<std::string_view, const Row*> rows;
    for (const Row& row : kRows) rows.emplace(row.op, &row);
    return rows;
  }();
  const auto it = by_op.find(op);
  return it == by_op.end() ? nullptr : it->second;
}

}  // namespace

bool ElementEmitter::Supports(const OpDef& op) { return FindRow(op.name()) != nullptr; }

bool ElementEmitter::CallsLibm(const Node& node) {
  const Row* row = FindRow(node.op_name());
  return row != nullptr && row->libm == Libm::kInF64 && node.type().dtype == DType::kF64;
}

llvm::Value* ElementEmitter::EmitOp(const Node& node, Arguments arguments, int32_t error_code) {
  error_code_ = error_code;
  return FindRow(node.op_name())->emit(*this, node, node.type().dtype, arguments);
}

llvm::Value* ElementEmitter::Identity(ReduceKind kind, DType dtype, llvm::Type* type) {
  if (kind == ReduceKind::kSum) return llvm::Constant::getNullValue(type);
  const bool is_max = kind == ReduceKind::kMax;
  if (IsFloat(dtype)) {
    const double infinity = std::numeric_limits<double>::infinity();
    return llvm::ConstantFP::get(type, kind == ReduceKind::kProd ? 1.0 : is_max ? -infinity : infinity);
  }
  const unsigned bits = type->getScalarSizeInBits();
  if (kind == ReduceKind::kProd) return llvm::ConstantInt::get(type, 1);
  if (!IsSigned(dtype))
    return llvm::ConstantInt::get(type, is_max ? llvm::APInt::getMinValue(bits) : llvm::APInt::getMaxValue(bits));
  return llvm::ConstantInt::get(type,
                                is_max ? llvm::APInt::getSignedMinValue(bits) : llvm::APInt::getSignedMaxValue(bits));
}

llvm::Value* ElementEmitter::Combine(ReduceKind kind, DType dtype, llvm::Value* x, llvm::Value* y) {
  switch (kind) {
    case ReduceKind::kMax: return Max(dtype, x, y);
    case ReduceKind::kMin: return Min(dtype, x, y);
    case ReduceKind::kProd: return IsFloat(dtype) ? b_.CreateFMul(x, y) : b_.CreateMul(x, y);
    default: return IsFloat(dtype) ? b_.CreateFAdd(x, y) : b_.CreateAdd(x, y);
  }
}

llvm::Value* ElementEmitter::CombineLanes(llvm::Value* vector, const CombineFunction& combine) {
  unsigned lanes = llvm::cast<llvm::FixedVectorType>(vector->getType())->getNumElements();
  for (; lanes > 1; lanes /= 2) {
    std::vector<int> low, high;
    for (unsigned i = 0; i < lanes / 2; ++i) {
      low.push_back(static_cast<int>(i));
      high.push_back(static_cast<int>(i + lanes / 2));
    }
    vector = combine(b_.CreateShuffleVector(vector, low), b_.CreateShuffleVector(vector, high));
  }
  return b_.CreateExtractElement(vector, uint64_t{0});
}

}  // namespace lockstep
