// Compiles the body of a `fusion` node (core/ops/fusion.cc) to machine code for the host: one pass over memory for a
// chain of elementwise ops, with the reductions at its end. The CPU backend calls it when it emits an executable; the
// code lives as long as the compiler. One thread at a time may use a LoopCompiler; any number may run its loops.
//
// A loop is cut into `extent` units of work. The caller runs every unit exactly once, in any order and on any threads,
// and then calls finish(), if there is one. The results have the same bits however that is done: a unit is a fixed part
// of the index space, and a reduction's order of summation depends on shapes alone, not on threads nor on the width of
// the vectors.
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

// Says whether a loop can be made of `body`, and of what kind; fails with Unimplemented where not, naming the node.
// `has_libm`: the loop's code may call the C library, which transcendental functions of f64 do.
// Supported are elementwise ops, constants, ops that move the elements of one operand or count (OpDef::is_mover,
// Counts), and reductions, where
//  - without reductions, all results have the same number of elements;
//  - with reductions, all of them reduce the same dims of the same shape, and each result has as many elements as
//    the operand of the reductions or as their result. Reduced values may be computed with and broadcast back
//    (softmax).
absl::StatusOr<LoopInfo> AnalyzeLoop(const Graph& body, const LoopSizes& sizes = {}, bool has_libm = true);

// Plain data: copies are cheap and all refer to the compiler's code.
struct CompiledLoop {
  using RunFn = int32_t (*)(void* const* buffers, void* scratch, int64_t begin, int64_t end);
  using FinishFn = int32_t (*)(void* const* buffers, void* scratch);

  LoopInfo info;
  RunFn run = nullptr;        // dense row-major buffers of the body's types, aligned to their element size
  FinishFn finish = nullptr;  // null unless info.has_finish

  // Everything on the calling thread.
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

  // A body that was compiled before, up to the graph's name, gives the same code at once.
  absl::StatusOr<CompiledLoop> Compile(const Graph& body);

  // Several at once, one result for each body; quicker than one by one, as it uses more threads.
  absl::StatusOr<std::vector<CompiledLoop>> Compile(std::span<const Graph* const> bodies);

  // The processor and features that code is made for, as LLVM writes them.
  std::string target() const;

  // The same in parts, without a compiler: the name of the processor, and the features that it has, sorted ("+avx2").
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
