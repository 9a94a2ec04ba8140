// What a loop computes: what a fusion's body computes at each point of a nest of loops, and which loops reduce. Made
// from the body alone. Each kind of machine then cuts the nest into work: loop_plan.h for CPUs, grid_plan.h for GPUs.
// Plain values; any thread.
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

  // What it accumulates in: sums and products of f32 in f64, so that their error does not grow with the number of
  // elements, as PyTorch's does not.
  DType sum_dtype() const;
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

struct LoopNest {
  std::vector<int64_t> extents;  // outermost first, at least one; the last is the one that is vectorised
  std::vector<bool> reduced;     // which dimensions the reductions run over
  std::vector<Element> elements;
  std::vector<Reduction> reductions;
  std::vector<Output> outputs;
  int num_phases = 1;

  int64_t vector_dim() const { return static_cast<int64_t>(extents.size()) - 1; }
  bool vector_reduced() const { return reduced.back(); }
  int64_t num_points() const;   // the product of all extents
  int64_t num_kept() const;     // of those that are not reduced: the number of elements of a reduction's result
  int64_t num_reduced() const;  // of those that are
  // The computations that cost tens of instructions for each point.
  int64_t num_heavy() const;

  // The elements that the reductions and outputs of `phase` need; those of num_phases are needed after the reductions.
  std::vector<bool> NeededIn(int phase) const;
};

// Fails with Unimplemented, naming the node, where no loop can be made of the body. Whether there is code for each of
// its elementwise ops is the emitter's to say.
absl::StatusOr<LoopNest> MakeLoopNest(const Graph& body);

// For each result the operands (by position among the inputs) that it may overwrite: those that are read at the
// position that is written, of elements as large, and never later.
std::vector<std::vector<int>> OverwritableOperands(const LoopNest& nest, const Graph& body);

}  // namespace lockstep
