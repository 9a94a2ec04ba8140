// The context of emitters: the program being built, oneDNN's engine, the loop compiler, and the memory layouts of
// values. An emitter is a function that lowers one node to one or more kernels; emitters.h lists all of them.

#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/backend.h"
#include "backends/codegen/loop_compiler.h"
#include "backends/cpu/onednn.h"
#include "backends/planning/program_builder.h"
#include "core/graph.h"
#include "core/op_def.h"

namespace lockstep::cpu {

// A compiled loop and its compiler, which owns the code. Shared by all kernels that run the loop.
struct LoopCode {
  CompiledLoop loop;
  std::shared_ptr<LoopCompiler> compiler;
};

Kernel KernelOf(std::string name, absl::AnyInvocable<absl::Status(const KernelArgs&)> run);

class EmitContext {
 public:
  EmitContext(const Graph& graph, const Target& target, const dnnl::engine& engine)
      : builder_(graph, target.place), target_(target), engine_(engine) {}

  ProgramBuilder& builder() { return builder_; }
  const dnnl::engine& engine() const { return engine_; }
  const Target& target() const { return target_; }
  int threads() const { return target_.threads; }
  const LoopSizes& loop_sizes() const { return target_.loops; }

  // Returns the loop for `body`, which CompileLoops will fill. The kernel that runs it shares it.
  std::shared_ptr<LoopCode> AddLoop(Graph body);
  // Compiles all added loops together.
  absl::Status CompileLoops();

  // Returns the storage of operand i, row-major; adds a reorder if the operand exists only in another layout.
  absl::StatusOr<int> Read(const Node& node, size_t i) { return RowMajorOf(node, node.operand(i)); }
  absl::StatusOr<std::vector<int>> ReadAll(const Node& node);
  absl::StatusOr<int> RowMajorOf(const Node& node, Value value);
  // Returns the storage of `value` in the layout of `desc`. A reorder gets the source of `node`, its reader.
  absl::StatusOr<int> ReadAs(const Node& node, Value value, const dnnl::memory::desc& desc);
  // Returns a kernel that copies from one layout to another.
  absl::StatusOr<Kernel> Reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to) const;
  // Returns the layout of a storage. Requires a type that oneDNN has.
  dnnl::memory::desc DescOf(Value value, int storage) const;
  // Returns the layout in which `value` was produced.
  dnnl::memory::desc ProducedDesc(Value value) const { return DescOf(value, builder_.StoragesOf(value).front()); }

  // True if `value` was produced channels-last. False if that is the same as row-major.
  bool IsChannelsLast(Value value) const;

  // Returns the storage of a result: row-major, or with the layout `desc`.
  int Write(const Node& node, size_t i = 0) { return builder_.Define(ResultOf(node, i)); }
  int WriteAs(Value value, const dnnl::memory::desc& desc);

  Instruction& Add(const Node& node, Kernel kernel, std::vector<int> reads, std::vector<int> writes) {
    return builder_.Add(node, std::move(kernel), std::move(reads), std::move(writes));
  }

  // The storage that max pooling writes for its gradient, with the positions of the maxima, and true if it read x
  // channels-last.
  struct Maxima {
    int storage = -1;
    bool channels_last = false;
  };
  void RememberMaxima(const Node* pool, int storage, bool channels_last) { maxima_[pool] = {storage, channels_last}; }
  const Maxima* FindMaxima(const Node* pool) const {
    const auto it = maxima_.find(pool);
    return it == maxima_.end() ? nullptr : &it->second;
  }

  // A Value is a handle to a mutable node; lowering does not change nodes.
  static Value ResultOf(const Node& node, size_t i = 0) { return const_cast<Node&>(node).result(i); }

 private:
  ProgramBuilder builder_;
  const Target target_;
  const dnnl::engine engine_;
  std::vector<Graph> loop_bodies_;
  std::vector<std::shared_ptr<LoopCode>> loops_;
  std::map<std::string, dnnl::memory::desc, std::less<>> descs_;  // by shape, dtype and layout name
  std::unordered_map<const Node*, Maxima> maxima_;
};

}  // namespace lockstep::cpu
