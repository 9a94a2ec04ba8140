#include "backends/cpu/emitters.h"

namespace lockstep::cpu {

const Emitter* FindEmitter(std::string_view op) {
  for (const Emitter& emitter : kEmitters) {
    if (emitter.op == op) return &emitter;
  }
  return nullptr;
}

absl::Status CheckForOneDnn(const Node& node) {
  bool fits = OneDnnType(node.type().dtype).has_value() && node.type().num_elements() > 0;
  for (const Value& operand : node.operands()) fits = fits && operand.type().num_elements() > 0;
  return fits ? absl::OkStatus() : absl::UnimplementedError("a type that oneDNN does not have, or an empty tensor");
}

}  // namespace lockstep::cpu
