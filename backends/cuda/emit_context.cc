#include "backends/cuda/emit_context.h"

#include <map>

#include "core/check.h"

namespace lockstep::cuda {

std::vector<int> EmitContext::ReadAll(const Node& node) const {
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
  with_.preparation.AddProduct(product, op_);
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
