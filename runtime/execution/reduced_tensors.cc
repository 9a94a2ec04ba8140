#include "runtime/execution/reduced_tensors.h"

#include <algorithm>
#include <set>

#include "core/check.h"

namespace lockstep {
namespace {

bool IsKernelOrCopy(const StepInfo& step) { return step.kind == StepKind::kKernel || step.kind == StepKind::kCopy; }

int LastWriterBefore(const StepList& steps, size_t end, const BufferSlice& slice) {
  for (size_t i = end; i-- > 0;) {
    const StepInfo& step = steps[i]->info();
    if (!IsKernelOrCopy(step)) continue;
    const bool writes = std::any_of(step.writes.begin(), step.writes.end(),
                                    [&](const StepOperand& write) { return write.slice.Overlaps(slice); });
    if (writes) return static_cast<int>(i);
  }
  return -1;
}

size_t WaitFor(const StepList& steps, size_t start) {
  const int id = steps[start]->info().collective->id;
  for (size_t i = start + 1; i < steps.size(); ++i) {
    const StepInfo& step = steps[i]->info();
    if (step.kind == StepKind::kWait && step.collective->id == id) return i;
  }
  LOCKSTEP_CHECK(false) << "nobody waits for " << steps[start]->info().ToString();
}

// Returns the steps that read the result of this name and are not in `taken`, and adds them to it.
std::vector<int> TakeReaders(const StepList& steps, size_t begin, const StepOperand& result, std::set<size_t>& taken) {
  std::vector<int> readers;
  for (size_t i = begin; i < steps.size(); ++i) {
    const StepInfo& step = steps[i]->info();
    if (!IsKernelOrCopy(step)) continue;
    const bool reads = std::any_of(step.reads.begin(), step.reads.end(),
                                   [&](const StepOperand& read) { return read.name == result.name; });
    if (reads && taken.insert(i).second) readers.push_back(static_cast<int>(i));
  }
  return readers;
}

}  // namespace

std::vector<ReducedTensor> ReducedTensors(const StepList& steps) {
  std::vector<ReducedTensor> tensors;
  std::set<size_t> taken;
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepInfo& start = steps[i]->info();
    if (start.kind != StepKind::kStart || !TraitsOf(start.collective->op).reduces) continue;
    const size_t wait = WaitFor(steps, i);
    const std::vector<StepOperand>& results = steps[wait]->info().writes;
    LOCKSTEP_CHECK(results.size() == start.reads.size()) << start.ToString();
    for (size_t piece = 0; piece < results.size(); ++piece) {
      const StepOperand& operand = start.reads[piece];
      tensors.push_back({operand.name, static_cast<int64_t>(operand.slice.bytes),
                         LastWriterBefore(steps, i, operand.slice), static_cast<int>(wait),
                         TakeReaders(steps, wait + 1, results[piece], taken)});
    }
  }
  return tensors;
}

}  // namespace lockstep
