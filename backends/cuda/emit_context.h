// The context of the CUDA backend's emitters: the program being built, the target GPU, the code of loops, and the
// layouts of values, which are row-major or channels-last in memory (docs/decisions/0006). It lives while one graph is
// lowered.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "backends/backend.h"
#include "backends/codegen/grid_compiler.h"
#include "backends/cuda/attention_views.h"
#include "backends/cuda/cudnn_graph.h"
#include "backends/cuda/device_kernel.h"
#include "backends/cuda/kernel_image.h"
#include "backends/cuda/preparation.h"
#include "backends/cuda/product.h"
#include "backends/planning/program_builder.h"

namespace lockstep::cuda {

// A compiled loop and its image, shared by all kernels that run it. Filled by EmitContext::CompileLoops.
struct LoopCode {
  CompiledGrid grid;
  std::shared_ptr<KernelImage> image;
};

// The makers of images: for a GPU's driver, or for a test's replacement.
struct Images {
  GridCompiler::MakeTarget loops;                               // empty: PTX for the target's architecture
  std::function<std::string(std::string_view family)> kernels;  // of a family of kernels/, by name
};

// The context in which a graph is lowered: the graph of a program, or the body of one of its loops.
struct LoweringContext {
  const Target& target;
  const Images& images;
  Preparation& preparation;               // of the whole program
  uint32_t alignment = kBufferAlignment;  // in bytes, of all values at the addresses in runs
};

// Returns the stream in which a kernel of this backend runs.
inline CudaStream& StreamOf(const KernelArgs& args) { return static_cast<CudaStream&>(*args.stream); }

class EmitContext {
 public:
  EmitContext(const Graph& graph, const LoweringContext& with);

  ProgramBuilder& builder() { return builder_; }
  const LoweringContext& with() const { return with_; }
  const AttentionViews& attention_views() const { return attention_views_; }
  const Target& target() const { return with_.target; }
  const GpuDescription& gpu() const { return *with_.target.gpu; }
  uint32_t alignment() const { return with_.alignment; }

  // Sets the node that the following calls are for. Messages about failed preparation name it.
  void Begin(const Node& node) { op_ = node.Describe(); }

  // Returns the loop for `body`, which CompileLoops will fill.
  std::shared_ptr<LoopCode> AddLoop(Graph body);
  absl::Status CompileLoops(const GridCompiler& compiler);

  const std::shared_ptr<CudnnHandle>& cudnn() const { return with_.preparation.cudnn(); }
  // Adds work for when the program is loaded: the choice of an engine, or of the algorithm of a product, which may use
  // up to `workspace` bytes.
  void AddConvolution(std::shared_ptr<Tunable> problem) { with_.preparation.AddConvolution(std::move(problem), op_); }
  std::shared_ptr<Product> AddProduct(const MatMulProblem& problem, uint64_t workspace);
  // Returns the image of a family of kernels/, which all its kernels in a program share, or one kernel of it.
  std::shared_ptr<KernelImage> ImageOf(const std::string& family);
  DeviceKernel KernelOf(const std::string& family, std::string name);

  // Returns the storage of operand i of the node, row-major, or of `value` in a layout. If it exists only in the other
  // layout, a reorder is added, with the source of `node`, its reader.
  int Read(const Node& node, size_t i) { return ReadAs(node, node.operand(i), /*channels_last=*/false); }
  std::vector<int> ReadAll(const Node& node);
  int ReadAs(const Node& node, Value value, bool channels_last);
  // Returns the storage of a result, row-major or in a layout.
  int Write(const Node& node, size_t i = 0) { return builder_.Define(ResultOf(node, i)); }
  int WriteAs(Value value, bool channels_last);

  // Returns true if `value` was produced channels-last, or exists in a layout. If both layouts are the same in memory,
  // a value is row-major.
  bool IsChannelsLast(Value value) const;
  bool ExistsAs(Value value, bool channels_last) const;
  // Returns what the readers of `value` need: 1 if channels-last, -1 if row-major, and 0 if they take both or differ.
  int Need(Value value) const;

  Instruction& Add(const Node& node, Kernel kernel, std::vector<int> reads, std::vector<int> writes) {
    return builder_.Add(node, std::move(kernel), std::move(reads), std::move(writes));
  }

  // A Value is a handle to a mutable node; lowering does not change nodes.
  static Value ResultOf(const Node& node, size_t i = 0) { return const_cast<Node&>(node).result(i); }

 private:
  ProgramBuilder builder_;
  const LoweringContext with_;
  const AttentionViews attention_views_;
  std::string op_;
  std::unordered_set<Value, ValueHash> results_;                  // of the graph
  std::map<std::string, std::shared_ptr<KernelImage>> families_;  // by name
  std::vector<Graph> loop_bodies_;
  std::vector<std::string> loop_ops_;
  std::vector<std::shared_ptr<LoopCode>> loops_;
};

}  // namespace lockstep::cuda
