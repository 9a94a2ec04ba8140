// Emits code for the words of Philox4x32-10, as core/philox.h defines them. It uses only integers, so that all targets
// compute the same bits. Ops of one loop that need several words of one draw share the rounds, because LLVM eliminates
// common subexpressions.

#include <array>

#include "backends/codegen/emit_element.h"
#include "core/philox.h"

namespace lockstep {
namespace {

// Halves of i64 values and products of u32 values, for scalars or vectors.
class WordEmitter {
 public:
  WordEmitter(llvm::IRBuilderBase& b, llvm::Type* wide)
      : b_(b), wide_(wide), word_(wide->getWithNewType(b.getInt32Ty())) {}

  llvm::Value* Low(llvm::Value* x) { return b_.CreateTrunc(x, word_); }
  llvm::Value* High(llvm::Value* x) { return b_.CreateTrunc(b_.CreateLShr(x, uint64_t{32}), word_); }
  llvm::Value* Product(llvm::Value* x, uint32_t factor) {
    return b_.CreateMul(b_.CreateZExt(x, wide_), llvm::ConstantInt::get(wide_, factor));
  }
  llvm::Value* Constant(uint32_t value) { return llvm::ConstantInt::get(word_, value); }

 private:
  llvm::IRBuilderBase& b_;
  llvm::Type *const wide_, *const word_;
};

}  // namespace

llvm::Value* ElementEmitter::RandomBits(llvm::Value* seed, llvm::Value* step, llvm::Value* index, int64_t stream,
                                        int64_t word) {
  WordEmitter e(b_, seed->getType());
  llvm::Value* const last =
      b_.CreateOr(b_.CreateShl(e.High(step), uint64_t{24}), e.Constant(static_cast<uint32_t>(stream)));
  std::array<llvm::Value*, 4> counter = {e.Low(index), e.High(index), e.Low(step), last};
  std::array<llvm::Value*, 2> key = {e.Low(seed), e.High(seed)};
  for (int round = 0; round < Philox::kRounds; ++round) {
    llvm::Value* const first = e.Product(counter[0], Philox::kMultiplier0);
    llvm::Value* const second = e.Product(counter[2], Philox::kMultiplier1);
    counter = {b_.CreateXor(b_.CreateXor(e.High(second), counter[1]), key[0]), e.Low(second),
               b_.CreateXor(b_.CreateXor(e.High(first), counter[3]), key[1]), e.Low(first)};
    key = {b_.CreateAdd(key[0], e.Constant(Philox::kWeyl0)), b_.CreateAdd(key[1], e.Constant(Philox::kWeyl1))};
  }
  return counter[static_cast<size_t>(word)];
}

}  // namespace lockstep
