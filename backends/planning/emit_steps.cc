#include "backends/planning/emit_steps.h"

#include "runtime/execution/steps.h"

namespace lockstep {
namespace {

std::vector<StepOperand> Operands(const std::vector<int>& ids, const Program& program, const BufferPlan& plan) {
  std::vector<StepOperand> operands;
  for (int id : ids) {
    const Storage& storage = program.storage(id);
    const BufferSlice& slice = plan.slices[static_cast<size_t>(id)];
    operands.push_back({storage.name, storage.layout, slice, storage.dtype, storage.shape});
  }
  return operands;
}

// Returns the range from the first to the last of adjacent operands.
BufferSlice RangeOf(const std::vector<StepOperand>& operands) {
  if (operands.empty()) return {};
  BufferSlice range = operands.front().slice;
  const BufferSlice& last = operands.back().slice;
  range.bytes = last.offset + last.bytes - range.offset;
  return range;
}

// Returns the step that starts a collective or waits for it. `info` has the operands.
std::unique_ptr<Step> StartOrWait(StepInfo info, Instruction& instruction) {
  const bool is_start = instruction.kind == Instruction::Kind::kStart;
  const bool is_barrier = instruction.collective.op == CollectiveOp::kBarrier;
  const bool is_transfer = instruction.collective.is_called_transfer();
  info.kind = is_start ? StepKind::kStart : StepKind::kWait;
  info.name = is_transfer ? "transfer" : TraitsOf(instruction.collective.op).name;
  info.name += is_start ? ".start" : ".wait";
  info.collective = std::move(instruction.collective);
  if (!is_barrier) {
    info.collective->input = RangeOf(info.reads);
    info.collective->output = RangeOf(info.writes);
    // A wait's input is known from its start; its writes are the results that become usable.
    (is_start ? info.writes : info.reads).clear();
  }
  return CollectiveStep(std::move(info));
}

}  // namespace

StepList EmitSteps(Program& program, const BufferPlan& plan) {
  StepList steps;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    Instruction& instruction = program.instructions[i];
    StepInfo info;
    info.source = instruction.source;
    info.work = instruction.work;
    info.reads = Operands(instruction.reads, program, plan);
    info.writes = Operands(instruction.writes, program, plan);
    switch (instruction.kind) {
      case Instruction::Kind::kKernel:
        info.name = instruction.kernel.name;
        info.scratch = plan.scratch[i];
        info.may_overwrite = std::move(instruction.may_overwrite);
        steps.push_back(KernelStep(std::move(info), std::move(instruction.kernel)));
        break;
      case Instruction::Kind::kCopy:
        info.kind = StepKind::kCopy;
        info.name = "copy";
        steps.push_back(CopyStep(std::move(info)));
        break;
      case Instruction::Kind::kStart:
      case Instruction::Kind::kWait: steps.push_back(StartOrWait(std::move(info), instruction)); break;
      case Instruction::Kind::kPush:
        info.kind = StepKind::kPush;
        info.name = "push";
        info.served = instruction.served;
        steps.push_back(ServedStep(std::move(info)));
        break;
      case Instruction::Kind::kStartPull:
      case Instruction::Kind::kWaitPull: {
        const bool is_start = instruction.kind == Instruction::Kind::kStartPull;
        info.kind = is_start ? StepKind::kStartPull : StepKind::kWaitPull;
        info.name = is_start ? "pull.start" : "pull.wait";
        info.served = instruction.served;
        steps.push_back(ServedStep(std::move(info)));
        break;
      }
      case Instruction::Kind::kPull:
        LOCKSTEP_CHECK(false) << "a pull that was not scheduled, of " << info.source;
        break;
      case Instruction::Kind::kCollective:
        LOCKSTEP_CHECK(false) << "a collective that was not scheduled: " << instruction.collective.ToString();
    }
  }
  return steps;
}

}  // namespace lockstep
