#include "runtime/comm/collective/operands.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "core/status.h"
#include "runtime/comm/collective/description.h"

namespace lockstep {
namespace {

// Returns the error in the pairs, or "".
std::string WrongWith(const std::vector<RankPair>& pairs, int size) {
  std::vector<bool> sends(static_cast<size_t>(size), false), gets = sends;
  const auto take = [&](std::vector<bool>& taken, int rank, const char* as) {
    if (rank < 0 || rank >= size) return std::to_string(rank) + " is not one of " + std::to_string(size) + " ranks";
    if (taken[static_cast<size_t>(rank)]) return "rank " + std::to_string(rank) + " is twice a " + as;
    taken[static_cast<size_t>(rank)] = true;
    return std::string();
  };
  for (const RankPair& pair : pairs) {
    std::string wrong = take(sends, pair.source, "source");
    if (wrong.empty()) wrong = take(gets, pair.target, "target");
    if (!wrong.empty()) return wrong;
  }
  return "";
}

bool IsInPlace(const Collective& c, const std::byte* input, const std::byte* output, int rank) {
  const CollectiveTraits traits = TraitsOf(c.op);
  if (traits.is_direct() || c.counts.size() != 1) return false;
  const size_t share = static_cast<size_t>(rank) * static_cast<size_t>(c.counts[0]) * SizeOf(c.dtype);
  if (traits.gathers) return input == output + share;
  return traits.scatters ? output == input + share : input == output;
}

}  // namespace

absl::Status CheckOperands(const Collective& c, const void* input, const void* output, const Communicator::Call& call,
                           int rank, int size) {
  auto where = [&] { return InvalidArgument() << Describe(DescriptionOf(c, call), std::string(call.label)) << ": "; };
  if (c.root < 0 || c.root >= size) return where() << "root " << c.root << " is not one of " << size << " ranks";
  if (c.counts.empty()) return where() << "there are no pieces";
  if (std::any_of(c.counts.begin(), c.counts.end(), [](int64_t count) { return count < 0; }))
    return where() << "the count is negative";
  if (const std::string wrong = WrongWith(c.pairs, size); !wrong.empty()) return where() << wrong;
  if (c.count() == 0 || call.compared_only) return absl::OkStatus();
  const bool reads = ReadsInput(c, rank);
  if ((reads && input == nullptr) || output == nullptr) return where() << "an operand is null";
  if (!reads) return absl::OkStatus();
  const std::byte* in = static_cast<const std::byte*>(input);
  const std::byte* out = static_cast<const std::byte*>(output);
  if (!IsInPlace(c, in, out, rank) && in < out + OutputBytes(c, size) && out < in + InputBytes(c, size))
    return where() << "input and output overlap, but not in place";
  return absl::OkStatus();
}

}  // namespace lockstep
