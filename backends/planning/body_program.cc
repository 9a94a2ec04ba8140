#include "backends/planning/body_program.h"

#include <utility>

#include "backends/planning/bind_results.h"
#include "backends/planning/buffer_plan.h"
#include "backends/planning/certificate.h"
#include "backends/planning/emit_steps.h"
#include "backends/planning/rematerialize.h"
#include "backends/planning/reuse_operands.h"

namespace lockstep {

absl::StatusOr<BodyProgram> PlanBody(Program program, uint64_t body_bytes) {
  BindResults(program);
  BodyProgram body;
  if (body_bytes > 0) body.recomputed = Rematerialize(program, body_bytes).work;
  ReuseOperands(program);
  const BufferPlan plan = PlanBuffers(program);
  body.steps = EmitSteps(program, plan);
  body.buffers = plan.buffers;
  RETURN_IF_ERROR(CertifyOrder(body.steps, body.buffers, Mesh()).status());
  for (const ValueInfo& input : program.inputs) body.inputs.push_back(input.buffer);
  for (const ValueInfo& result : program.results) body.results.push_back(result.buffer);
  for (const Buffer& buffer : body.buffers) {
    if (buffer.kind == BufferKind::kArena) body.arena_bytes += AlignUp(buffer.bytes);
  }
  body.constants = std::move(program.constants);
  body.addresses.assign(body.buffers.size(), nullptr);
  return body;
}

void BodyProgram::SetAddresses(const KernelArgs& args,
                               const std::vector<std::unique_ptr<DeviceMemory>>& constants_in_memory) {
  for (size_t i = 0; i < inputs.size(); ++i) input(i) = args.reads[i];
  size_t next_constant = 0;
  uint64_t arena = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].kind == BufferKind::kConstant) addresses[i] = constants_in_memory[next_constant++]->data();
    if (buffers[i].kind != BufferKind::kArena) continue;
    addresses[i] = args.scratch + arena;
    arena += AlignUp(buffers[i].bytes);
  }
}

}  // namespace lockstep
