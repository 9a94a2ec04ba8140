#include "backends/cuda/emit_context.h"

#include <algorithm>
#include <map>

#include "backends/cuda/convolution_problem.h"
#include "backends/cuda/emitters.h"
#include "backends/cuda/tunable_product.h"
#include "backends/loops/channels_last.h"
#include "core/check.h"
#include "core/op_def.h"

namespace lockstep::cuda {
namespace {

std::string NameOf(Value value, bool channels_last) {
  return channels_last && !IsAlsoRowMajor(value.shape()) ? "channels-last" : "";
}

}  // namespace

EmitContext::EmitContext(const Graph& graph, const LoweringContext& with)
    : builder_(graph, with.target.place), with_(with), attention_views_(graph) {
  for (const Result& result : graph.results()) results_.insert(result.value);
}

int EmitContext::ReadAs(const Node& node, Value value, bool channels_last) {
  const int found = builder_.Find(value, NameOf(value, channels_last));
  if (found >= 0) return found;
  const int from = builder_.StoragesOf(value).front();
  Kernel kernel = ReorderKernel(value.type(), channels_last, *this);
  const int to = WriteAs(value, channels_last);
  Add(node, std::move(kernel), {from}, {to});
  return to;
}

int EmitContext::WriteAs(Value value, bool channels_last) {
  return builder_.Define(value, NameOf(value, channels_last), value.type().num_bytes());
}

bool EmitContext::IsChannelsLast(Value value) const {
  return !builder_.storage(builder_.StoragesOf(value).front()).layout.empty();
}

bool EmitContext::ExistsAs(Value value, bool channels_last) const {
  return builder_.Find(value, NameOf(value, channels_last)) >= 0;
}

int EmitContext::Need(Value value) const {
  if (IsAlsoRowMajor(value.shape())) return 0;
  bool needs_last = false, needs_rows = results_.contains(value);
  for (const Node* user : value.node->users()) {
    if (std::find(user->operands().begin(), user->operands().end(), value) == user->operands().end()) continue;
    const Emitter* const emitter = FindEmitter(*user);
    if (emitter == nullptr) {
      needs_rows = needs_rows || builder_.TakesRowMajor(*user);
    } else if (emitter->layout == Emitter::Layout::kByProblem) {
      (ConvolutionProblem(*user, gpu().tf32, alignment()).channels_last ? needs_last : needs_rows) = true;
    } else {
      needs_rows = needs_rows || emitter->layout == Emitter::Layout::kRowMajor;
    }
  }
  return (needs_last ? 1 : 0) - (needs_rows ? 1 : 0);
}

std::vector<int> EmitContext::ReadAll(const Node& node) {
  std::vector<int> reads;
  for (size_t i = 0; i < node.operands().size(); ++i) reads.push_back(Read(node, i));
  return reads;
}

std::shared_ptr<KernelImage> EmitContext::ImageOf(const std::string& family) {
  std::shared_ptr<KernelImage>& image = families_[family];
  if (image == nullptr) {
    auto text = std::make_shared<const std::string>(with_.images.kernels(family));
    LOCKSTEP_CHECK(!text->empty()) << "no kernels of the name " << family;
    image = std::make_shared<KernelImage>(std::move(text));
    with_.preparation.AddKernel(image, "", op_);
  }
  return image;
}

DeviceKernel EmitContext::KernelOf(const std::string& family, std::string name) {
  std::shared_ptr<KernelImage> image = ImageOf(family);
  with_.preparation.AddKernel(image, name, op_);
  return {std::move(image), std::move(name)};
}

std::shared_ptr<Product> EmitContext::AddProduct(const MatMulProblem& problem, uint64_t workspace) {
  auto product = std::make_shared<Product>(problem, workspace, with_.preparation.cublaslt());
  with_.preparation.AddProduct(std::make_shared<TunableProduct>(product), op_);
  return product;
}

std::shared_ptr<LoopCode> EmitContext::AddLoop(Graph body) {
  loop_bodies_.push_back(std::move(body));
  loop_ops_.push_back(op_);
  loops_.push_back(std::make_shared<LoopCode>());
  return loops_.back();
}

absl::Status EmitContext::CompileLoops(const GridCompiler& compiler) {
  std::vector<const Graph*> bodies;
  for (const Graph& body : loop_bodies_) bodies.push_back(&body);
  ASSIGN_OR_RETURN(std::vector<CompiledGrid> compiled, compiler.Compile(bodies));
  std::map<const std::string*, std::shared_ptr<KernelImage>> images;  // one for each text
  for (size_t i = 0; i < compiled.size(); ++i) {
    std::shared_ptr<KernelImage>& image = images[compiled[i].image.get()];
    if (image == nullptr) image = std::make_shared<KernelImage>(compiled[i].image);
    with_.preparation.AddKernel(image, compiled[i].run.kernel, loop_ops_[i]);
    if (compiled[i].finish) with_.preparation.AddKernel(image, compiled[i].finish->kernel, loop_ops_[i]);
    *loops_[i] = {std::move(compiled[i]), image};
  }
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
