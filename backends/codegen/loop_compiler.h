// Compiles the body of a `fusion` node (core/ops/fusion.cc) to machine code for the host: one pass over memory for a
// chain of elementwise ops and the reductions at its end. The CPU backend calls it when it emits an executable; the
// code lives as long as the compiler. One thread at a time may use a LoopCompiler; any number of threads may run its
// loops.
//
// A loop is cut into `extent` units of work. The caller runs every unit exactly once, in any order and on any threads,
// and then calls finish(), if there is one. The results have the same bits in all cases: a unit is a fixed part of the
// index space, and the order of summation of a reduction depends only on shapes, not on threads or vector widths.
//
//   void* buffers[] = {w, g, new_w};                        // the body's inputs, then its results
//   loop.run(buffers, scratch, begin, end);                 // units [begin, end); on each thread its own range
//   if (loop.finish) loop.finish(buffers, scratch);         // once, after all of them
//
// Both return kLoopOk or an error (backends/loops/loop_info.h).

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/loops/loop_info.h"
#include "backends/loops/loop_sizes.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

// Returns the kind of loop that `body` becomes, or Unimplemented with the name of the node that prevents it.
// `has_libm`: the loop's code may call the C library, which transcendental functions of f64 do. Supported are
// elementwise ops, constants, ops that move the elements of one operand or count (OpDef::is_mover, Counts), and
// reductions, under these conditions:
//  - without reductions, all results have the same number of elements;
//  - with reductions, all of them reduce the same dims of the same shape, and each result has as many elements as
//    the operand of the reductions or as their result. Reduced values may be computed with and broadcast back
//    (softmax).
absl::StatusOr<LoopInfo> AnalyzeLoop(const Graph& body, const LoopSizes& sizes = {}, bool has_libm = true);

// Plain data: copies are cheap and refer to the compiler's code.
struct CompiledLoop {
  using RunFn = int32_t (*)(void* const* buffers, void* scratch, int64_t begin, int64_t end);
  using FinishFn = int32_t (*)(void* const* buffers, void* scratch);

  LoopInfo info;
  RunFn run = nullptr;        // dense row-major buffers of the body's types, aligned to their element size
  FinishFn finish = nullptr;  // null unless info.has_finish

  // Runs all units on the calling thread.
  int32_t RunAll(void* const* buffers, void* scratch) const {
    const int32_t error = run(buffers, scratch, 0, info.extent);
    const int32_t of_finish = finish ? finish(buffers, scratch) : kLoopOk;
    return error != kLoopOk ? error : of_finish;
  }
};

class LoopCompiler {
 public:
  struct Options {
    std::string cpu;       // LLVM's name of a processor; empty: the host, with the features that it has
    std::string features;  // LLVM's list such as "+avx2,+fma", only with `cpu`
    LoopSizes sizes;
  };
  static absl::StatusOr<std::unique_ptr<LoopCompiler>> Create(Options options);
  static absl::StatusOr<std::unique_ptr<LoopCompiler>> Create() { return Create(Options()); }
  ~LoopCompiler();
  LoopCompiler(const LoopCompiler&) = delete;
  LoopCompiler& operator=(const LoopCompiler&) = delete;

  // A body that was compiled before returns the same code at once; the graph's name does not matter.
  absl::StatusOr<CompiledLoop> Compile(const Graph& body);

  // Compiles several bodies, one result for each. Faster than one by one, because it uses more threads.
  absl::StatusOr<std::vector<CompiledLoop>> Compile(std::span<const Graph* const> bodies);

  // The processor and features that code is made for, as LLVM writes them.
  std::string target() const;

  // The parts of the target, known without a compiler: the processor's name and its sorted features ("+avx2").
  struct Target {
    std::string cpu;
    std::vector<std::string> features;
  };
  static absl::StatusOr<Target> TargetOf(const Options& options);

 private:
  class Impl;
  explicit LoopCompiler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
