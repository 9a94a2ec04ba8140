// What an emitter works with: the program that is being built, oneDNN's engine, the loop compiler, and the memory
// layouts of values. An emitter is a function that turns one node into one or more kernels; emitters.h lists them all.

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

// A compiled loop with its compiler, since code lives as long as that: hence shared by all kernels that run code of it.
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

  // The loop that `body` will be once CompileLoops has run. Shared by the kernel that runs it.
  std::shared_ptr<LoopCode> AddLoop(Graph body);
  // Compiles all loops that were added, at once.
  absl::Status CompileLoops();

  // Operand i of the node, row-major, reordered if it exists in another layout only.
  absl::StatusOr<int> Read(const Node& node, size_t i) { return RowMajorOf(node, node.operand(i)); }
  absl::StatusOr<std::vector<int>> ReadAll(const Node& node);
  absl::StatusOr<int> RowMajorOf(const Node& node, Value value);
  // `value` in the layout of `desc`. The reorder's source is that of `node`, for which it is made.
  absl::StatusOr<int> ReadAs(const Node& node, Value value, const dnnl::memory::desc& desc);
  // The kernel that copies from one layout to another.
  absl::StatusOr<Kernel> Reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to) const;
  // How a storage lies. Requires a type that oneDNN has.
  dnnl::memory::desc DescOf(Value value, int storage) const;
  // The layout in which `value` was produced.
  dnnl::memory::desc ProducedDesc(Value value) const { return DescOf(value, builder_.StoragesOf(value).front()); }

  // Whether `value` was produced channels-last. Not where that is the same as row-major.
  bool IsChannelsLast(Value value) const;

  // The storage of a result, row-major or as `desc` says.
  int Write(const Node& node, size_t i = 0) { return builder_.Define(ResultOf(node, i)); }
  int WriteAs(Value value, const dnnl::memory::desc& desc);

  // Adds a kernel.
  Instruction& Add(const Node& node, Kernel kernel, std::vector<int> reads, std::vector<int> writes) {
    return builder_.Add(node, std::move(kernel), std::move(reads), std::move(writes));
  }

  // What max pooling keeps for its gradient: where the maxima were, and whether it took x channels-last or row-major.
  struct Maxima {
    int storage = -1;
    bool channels_last = false;
  };
  void RememberMaxima(const Node* pool, int storage, bool channels_last) { maxima_[pool] = {storage, channels_last}; }
  const Maxima* FindMaxima(const Node* pool) const {
    const auto it = maxima_.find(pool);
    return it == maxima_.end() ? nullptr : &it->second;
  }

  // Values are handles to nodes that can be changed; lowering changes none.
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
