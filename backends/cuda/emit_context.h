// What an emitter of the CUDA backend has at hand: the program that it adds to, the GPU that it is made for, the code
// of loops. Values are row-major in memory. Lives as long as one graph is lowered.

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

// How images are made: what a GPU's driver takes, or what a test has in its place.
struct Images {
  GridCompiler::MakeTarget loops;                               // empty: PTX for the target's architecture
  std::function<std::string(std::string_view family)> kernels;  // of a family of kernels/, by name
};

// What a graph is lowered with besides itself: for a program, and for the bodies of its loops.
struct LoweringOf {
  const Target& target;
  const Images& images;
  Preparation& preparation;               // of the whole program
  uint32_t alignment = kBufferAlignment;  // in bytes, of all values at the addresses that the program is run with
};

// The stream in which a kernel of this backend runs.
inline CudaStream& StreamOf(const KernelArgs& args) { return static_cast<CudaStream&>(*args.stream); }

class EmitContext {
 public:
  EmitContext(const Graph& graph, const LoweringOf& with) : builder_(graph, with.target.place), with_(with) {}

  ProgramBuilder& builder() { return builder_; }
  const LoweringOf& with() const { return with_; }
  const Target& target() const { return with_.target; }
  const GpuDescription& gpu() const { return *with_.target.gpu; }
  uint32_t alignment() const { return with_.alignment; }

  // The node of which the following is, for messages of what cannot be prepared.
  void Begin(const Node& node) { op_ = node.Describe(); }

  // The loop that `body` will be once CompileLoops has run.
  std::shared_ptr<LoopCode> AddLoop(Graph body);
  absl::Status CompileLoops(const GridCompiler& compiler);

  const std::shared_ptr<CudnnHandle>& cudnn() const { return with_.preparation.cudnn(); }
  // What is made when the program is loaded: a plan over cuDNN, which then says what was chosen; a product, which may
  // use so much workspace.
  void AddPlan(std::function<absl::StatusOr<std::string>()> make) { with_.preparation.AddPlan(std::move(make), op_); }
  std::shared_ptr<Product> AddProduct(const MatMulProblem& problem, uint64_t workspace);
  // The image of a family of kernels/, which all its kernels of a program share; and one of those.
  std::shared_ptr<KernelImage> ImageOf(const std::string& family);
  DeviceKernel KernelOf(const std::string& family, std::string name);

  // Where operand i of the node lies.
  int Read(const Node& node, size_t i) const { return builder_.StoragesOf(node.operand(i)).front(); }
  std::vector<int> ReadAll(const Node& node) const;
  // The storage of a result.
  int Write(const Node& node, size_t i = 0) { return builder_.Define(ResultOf(node, i)); }

  // Adds a kernel.
  Instruction& Add(const Node& node, Kernel kernel, std::vector<int> reads, std::vector<int> writes) {
    return builder_.Add(node, std::move(kernel), std::move(reads), std::move(writes));
  }

  // Values are handles to nodes that can be changed; lowering changes none.
  static Value ResultOf(const Node& node, size_t i = 0) { return const_cast<Node&>(node).result(i); }

 private:
  ProgramBuilder builder_;
  const LoweringOf with_;
  std::string op_;
  std::map<std::string, std::shared_ptr<KernelImage>> families_;  // by name
  std::vector<Graph> loop_bodies_;
  std::vector<std::string> loop_ops_;
  std::vector<std::shared_ptr<LoopCode>> loops_;
};

}  // namespace lockstep::cuda
