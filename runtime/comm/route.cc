#include "runtime/comm/route.h"

#include "runtime/comm/chunks.h"

namespace lockstep {
namespace {

// Up to so many bytes more that a group sends, one message less counts for more.
constexpr size_t kFewBytes = 32 * 1024;
// Likewise of messages that only say that a group is there.
constexpr int kFewGroups = 32;

}  // namespace

Route RouteOf(const OpDescription& d, int world_size, const RouteOptions& options) {
  const OpcodeTraits traits = TraitsOf(d.opcode);
  const size_t others = static_cast<size_t>(options.groups - 1);
  const size_t shares = traits.gathers ? static_cast<size_t>(world_size) : 1;
  const size_t bytes = shares * static_cast<size_t>(d.count) * SizeOf(static_cast<DType>(d.dtype));
  if (!traits.moves_data || d.compared_only) return options.groups <= kFewGroups ? Route::kAll : Route::kChain;
  if (traits.is_direct()) return Route::kPair;
  if (traits.gathers) return Route::kAll;  // each sends its share, which nobody else has
  if (traits.from_root) return others == 1 || bytes * others <= kFewBytes ? Route::kAll : Route::kChain;
  if (options.in_rank_order && options.largest_group > 1) return Route::kChain;
  if (traits.scatters) return Route::kOwner;
  const size_t more = bytes * others * static_cast<size_t>(options.groups - 2) / static_cast<size_t>(options.groups);
  return more <= kFewBytes ? Route::kAll : Route::kOwner;
}

Travel TravelOf(Route route, Opcode opcode, uint64_t bytes, int groups, int ranks_a_group) {
  if (groups < 2) return {};
  const OpcodeTraits traits = TraitsOf(opcode);
  const uint64_t others = static_cast<uint64_t>(groups - 1);
  // Of what each group has a share, it sends its own to all, or to each the share of that.
  const uint64_t in_shares = bytes * others / static_cast<uint64_t>(groups);
  switch (route) {
    case Route::kChain: {
      const bool both_ways = traits.reduces || !traits.moves_data;
      return {(both_ways ? 2 : 1) * (groups - 1), traits.reduces ? 2 * bytes : bytes};
    }
    case Route::kOwner: return traits.scatters ? Travel{1, in_shares} : Travel{2, 2 * in_shares};
    case Route::kAll: return {1, traits.gathers ? in_shares : bytes * others};
    case Route::kPair:
      if (traits.to_root) return {1, bytes / static_cast<uint64_t>(groups)};
      if (traits.from_root) return {1, in_shares};
      return {1, static_cast<uint64_t>(ranks_a_group) * (traits.permutes ? bytes : in_shares)};
  }
  return {};
}

}  // namespace lockstep
