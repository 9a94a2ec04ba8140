#include "runtime/comm/describe.h"

#include <sstream>

#include "absl/strings/str_format.h"
#include "core/dtype.h"
#include "core/placement.h"
#include "core/status.h"

namespace lockstep {
namespace {

const char* OpcodeName(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBarrier: return "barrier";
    case Opcode::kAllocate: return "allocate";
    case Opcode::kAllReduce: return "all_reduce";
    case Opcode::kBroadcast: return "broadcast";
    case Opcode::kAllGather: return "all_gather";
    case Opcode::kReduceScatter: return "reduce_scatter";
  }
  return "?";
}

}  // namespace

std::string Describe(const OpDescription& d, const std::string& label) {
  std::ostringstream text;
  text << OpcodeName(d.opcode);
  if (d.opcode == Opcode::kAllReduce || d.opcode == Opcode::kReduceScatter) {
    text << " " << ReduceKindName(static_cast<ReduceKind>(d.kind));
  }
  if (d.opcode == Opcode::kBroadcast) text << " from rank " << d.root;
  if (d.opcode != Opcode::kBarrier && d.opcode != Opcode::kAllocate) {
    text << " " << DTypeName(static_cast<DType>(d.dtype)) << "[" << d.count << "]";
  }
  text << " `" << label << "`";
  return text.str();
}

std::string DifferenceOf(const Communicator::Evidence& a, const Communicator::Evidence& b) {
  auto hashes = [](uint64_t x, uint64_t y) { return absl::StrFormat(" (0x%016x and 0x%016x)", x, y); };
  if (a.program != b.program) return "they run different programs" + hashes(a.program, b.program);
  if (a.assignments != b.assignments) {
    return absl::StrFormat("a state was assigned on one of them alone (%d assignments and %d)", a.assignments,
                           b.assignments);
  }
  if (a.inputs != b.inputs) return "inputs that are replicated have different contents" + hashes(a.inputs, b.inputs);
  if (a.states != b.states) return "replicas of the states differ" + hashes(a.states, b.states);
  return "";
}

}  // namespace lockstep
