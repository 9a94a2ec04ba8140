// The computation of a loop: what a fusion's body computes at each point of a loop nest, and which loops reduce. It
// depends only on the body. Each kind of machine then cuts the nest into work: loop_plan.h for CPUs, grid_plan.h for
// GPUs. Plain data; any thread.
//
// Ops that only move elements (OpDef::is_mover) disappear: the result is a list of scalar computations, each at an
// affine position. The nest's dimensions are those of the results, or of the reductions' operand. Neighbours are merged
// if all positions allow it, so that most loops have one or two dimensions.
//
// Reductions are in phases: phase 1 may use the results of phase 0 (softmax: maximum, then sum of exponentials, then
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
  const Node* node = nullptr;  // for constant, count and op
  int index = 0;               // kLoad: index of the input; kReduced: index of the reduction
  Affine at;  // kLoad and kConstant: position in the tensor; kCount: the value, before conversion to dtype
  std::vector<int> arguments;  // elements before this one
  DType dtype = DType::kF32;
  int phase = 0;              // the first phase in which its value is known
  std::vector<bool> depends;  // by loop dimension: true if the value depends on it
};

struct Reduction {
  const Node* node = nullptr;
  ReduceKind kind = ReduceKind::kSum;
  int operand = -1;  // the element that is reduced
  DType dtype = DType::kF32;
  int phase = 0;

  // The accumulator's dtype: f64 for sums and products of f32, so that their error does not grow with the number of
  // elements, as in PyTorch.
  DType sum_dtype() const;
};

// A result of the body: element `element`, stored at `at`, in the loop of `phase`, or after all phases if
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
  std::vector<int64_t> extents;  // outermost first, at least one; the last is vectorized
  std::vector<bool> reduced;     // by dimension: true if the reductions run over it
  std::vector<Element> elements;
  std::vector<Reduction> reductions;
  std::vector<Output> outputs;
  int num_phases = 1;

  int64_t vector_dim() const { return static_cast<int64_t>(extents.size()) - 1; }
  bool vector_reduced() const { return reduced.back(); }
  int64_t num_points() const;   // the product of all extents
  int64_t num_kept() const;     // the product of the kept extents: the number of elements of a reduction's result
  int64_t num_reduced() const;  // the product of the reduced extents
  // The number of computations that cost tens of instructions at each point.
  int64_t num_heavy() const;

  // Returns the elements that the reductions and outputs of `phase` need; phase num_phases stands for the time after
  // the reductions.
  std::vector<bool> NeededIn(int phase) const;
};

// Returns Unimplemented, naming the node, if the body cannot become a loop. The code generator decides if there is code
// for each elementwise op.
absl::StatusOr<LoopNest> MakeLoopNest(const Graph& body);

// Returns for each result the operands (by position among the inputs) that it may overwrite: those read only at the
// position that is written, with elements of the same size, and not read later.
std::vector<std::vector<int>> OverwritableOperands(const LoopNest& nest, const Graph& body);

}  // namespace lockstep
