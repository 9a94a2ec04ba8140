// The plan of a loop: what a fusion's body computes at each point of a nest of loops, which loops reduce, and how the
// nest is cut into units of work. Made from the body alone; an emitter turns it into code (backends/codegen/ with
// LLVM). Plain values; any thread.
//
// Ops that only move elements (OpDef::is_mover) vanish: what remains is a list of scalar computations, each at an
// affine position. The nest's dimensions are those of the results, or of the reductions' operand; neighbours are
// merged where every position allows it, so that most loops have one or two.
//
// Reductions come in phases: phase 1 may use what phase 0 reduced (softmax: maximum, then sum of exponentials, then
// the quotients).

#pragma once

#include <cstdint>
#include <vector>

#include "backends/loops/loop_info.h"
#include "backends/loops/loop_sizes.h"
#include "core/affine.h"
#include "core/graph.h"
#include "core/placement.h"
#include "core/status.h"

namespace lockstep {

// One scalar computation.
struct Element {
  enum class Kind : uint8_t { kLoad, kConstant, kCount, kOp, kReduced };
  Kind kind = Kind::kOp;
  const Node* node = nullptr;  // of constant, count and op
  int index = 0;               // kLoad: of the input; kReduced: of the reduction
  Affine at;  // kLoad and kConstant: position in the tensor; kCount: the value, before it is converted to dtype
  std::vector<int> arguments;  // elements before this one
  DType dtype = DType::kF32;
  int phase = 0;              // the first phase in which it is known
  std::vector<bool> depends;  // on which loop dimensions
};

struct Reduction {
  const Node* node = nullptr;
  ReduceKind kind = ReduceKind::kSum;
  int operand = -1;  // the element that is reduced
  DType dtype = DType::kF32;
  int phase = 0;
};

// A result of the body: element `element`, stored at `at`; in the loop of `phase`, or after all phases if
// `after_reduction`.
struct Output {
  int result = 0;
  int element = -1;
  Affine at;
  DType dtype = DType::kF32;
  bool after_reduction = false;
  int phase = 0;
};

struct LoopPlan {
  std::vector<int64_t> extents;  // outermost first, at least one; the last is the one that is vectorised
  std::vector<bool> reduced;     // which dimensions the reductions run over
  std::vector<Element> elements;
  std::vector<Reduction> reductions;
  std::vector<Output> outputs;
  int num_phases = 1;

  // A unit is one index of each kept dimension but the last, one block of `block` indices of the last if that is
  // kept, and one chunk of `chunk_length` indices of `chunk_dim`. With more than one chunk, partial results meet in
  // the scratch memory.
  int64_t block = 0;
  int64_t chunk_dim = -1;  // -1 if num_chunks is 1
  int64_t num_chunks = 1, chunk_length = 0;
  unsigned lanes = 0;  // of the vectors
  LoopInfo info;

  int64_t vector_dim() const { return static_cast<int64_t>(extents.size()) - 1; }
  bool vector_reduced() const { return reduced.back(); }
  int64_t num_blocks() const { return vector_reduced() ? 1 : (extents.back() + block - 1) / block; }
  // Kept indices of all dimensions: the number of elements of a reduction's result.
  int64_t num_kept() const;
  // Bytes of scratch memory of one reduction's partial results: [num_chunks, num_kept] of 8 bytes at most, padded.
  int64_t scratch_stride() const { return (num_chunks * num_kept() * 8 + 63) / 64 * 64; }

  // The elements that the reductions and outputs of `phase` need; those of num_phases are needed after the reductions.
  std::vector<bool> NeededIn(int phase) const;
};

// Fails with Unimplemented, naming the node, where no loop can be made of the body. Whether there is code for each of
// its elementwise ops is the emitter's to say.
absl::StatusOr<LoopPlan> PlanLoop(const Graph& body, const LoopSizes& sizes = {});

}  // namespace lockstep
