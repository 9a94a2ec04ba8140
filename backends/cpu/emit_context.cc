#include "backends/cpu/emit_context.h"

#include "backends/cpu/processor.h"

namespace lockstep::cpu {
namespace {

std::string Key(Value value, const std::string& layout) { return value.type().ToString() + ":" + layout; }

}  // namespace

Kernel KernelOf(std::string name, absl::AnyInvocable<absl::Status(const KernelArgs&)> run) {
  Kernel kernel;
  kernel.name = std::move(name);
  kernel.run = std::move(run);
  return kernel;
}

absl::StatusOr<std::vector<int>> EmitContext::ReadAll(const Node& node) {
  std::vector<int> reads;
  for (size_t i = 0; i < node.operands().size(); ++i) {
    ASSIGN_OR_RETURN(const int read, Read(node, i));
    reads.push_back(read);
  }
  return reads;
}

absl::StatusOr<int> EmitContext::RowMajorOf(const Node& node, Value value) {
  const int found = builder_.Find(value, "");
  if (found >= 0) return found;
  return ReadAs(node, value, RowMajor(value.type()));
}

dnnl::memory::desc EmitContext::DescOf(Value value, int storage) const {
  const std::string& layout = builder_.storage(storage).layout;
  if (layout.empty()) return RowMajor(value.type());
  const auto it = descs_.find(Key(value, layout));
  LOCKSTEP_CHECK(it != descs_.end()) << Key(value, layout);
  return it->second;
}

bool EmitContext::IsChannelsLast(Value value) const {
  if (value.shape().rank() < 3 || !OneDnnType(value.dtype())) return false;
  const std::string& layout = builder_.storage(builder_.StoragesOf(value).front()).layout;
  return !layout.empty() && layout == LayoutName(ChannelsLast(value.type()));
}

int EmitContext::WriteAs(Value value, const dnnl::memory::desc& desc) {
  std::string layout = LayoutName(desc);
  if (!layout.empty()) descs_.emplace(Key(value, layout), desc);
  return builder_.Define(value, std::move(layout), desc.get_size());
}

absl::StatusOr<Kernel> EmitContext::Reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to) const {
  return CallOneDnn("reorder", [&] {
    const dnnl::reorder::primitive_desc pd(engine_, from, engine_, to, DefaultAttributes());
    Kernel kernel = PrimitiveKernel("onednn.reorder", dnnl::reorder(pd), pd.scratchpad_desc(), engine_,
                                    {{DNNL_ARG_FROM, false, 0, from}, {DNNL_ARG_TO, true, 0, to}});
    kernel.is_reorder = true;
    return kernel;
  });
}

absl::StatusOr<int> EmitContext::ReadAs(const Node& node, Value value, const dnnl::memory::desc& desc) {
  const int found = builder_.Find(value, LayoutName(desc));
  if (found >= 0) return found;
  const int from = builder_.StoragesOf(value).front();
  ASSIGN_OR_RETURN(Kernel kernel, Reorder(DescOf(value, from), desc));
  const int to = WriteAs(value, desc);
  Add(node, std::move(kernel), {from}, {to});
  return to;
}

std::shared_ptr<LoopCode> EmitContext::AddLoop(Graph body) {
  loop_bodies_.push_back(std::move(body));
  loops_.push_back(std::make_shared<LoopCode>());
  return loops_.back();
}

absl::Status EmitContext::CompileLoops() {
  if (loop_bodies_.empty()) return absl::OkStatus();
  LoopCompiler::Options options = LoopOptionsFor(target_.isa);
  options.sizes = target_.loops;
  ASSIGN_OR_RETURN(std::shared_ptr<LoopCompiler> compiler, LoopCompiler::Create(options));
  std::vector<const Graph*> bodies;
  for (const Graph& body : loop_bodies_) bodies.push_back(&body);
  ASSIGN_OR_RETURN(std::vector<CompiledLoop> compiled, compiler->Compile(std::span<const Graph* const>(bodies)));
  for (size_t i = 0; i < compiled.size(); ++i) *loops_[i] = {std::move(compiled[i]), compiler};
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
