#include "runtime/comm/operands.h"

#include <cstddef>
#include <string>

#include "core/status.h"
#include "runtime/comm/chunks.h"
#include "runtime/comm/describe.h"

namespace lockstep {

absl::Status CheckOperands(const OpDescription& d, const void* input, const void* output, std::string_view label,
                           int rank, int size) {
  auto where = [&] { return InvalidArgument() << Describe(d, std::string(label)) << ": "; };
  if (d.root < 0 || d.root >= size) return where() << "root " << d.root << " is not one of " << size << " ranks";
  if (d.count < 0) return where() << "the count is negative";
  if (d.count == 0 || d.compared_only) return absl::OkStatus();
  if (input == nullptr || output == nullptr) return where() << "an operand is null";
  const std::byte* in = static_cast<const std::byte*>(input);
  const std::byte* out = static_cast<const std::byte*>(output);
  const size_t in_bytes = InputBytes(d, size);
  const size_t out_bytes = OutputBytes(d, size);
  const OpcodeTraits traits = TraitsOf(d.opcode);
  const bool in_place = traits.gathers    ? in == out + static_cast<size_t>(rank) * in_bytes
                        : traits.scatters ? out == in + static_cast<size_t>(rank) * out_bytes
                                          : in == out;
  if (!in_place && in < out + out_bytes && out < in + in_bytes)
    return where() << "input and output overlap, but not in place";
  return absl::OkStatus();
}

}  // namespace lockstep
