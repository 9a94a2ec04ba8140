#include "runtime/comm/collective/description.h"

#include <numeric>
#include <sstream>

#include "absl/strings/str_format.h"
#include "core/dtype.h"
#include "core/placement.h"
#include "core/status.h"

namespace lockstep {
namespace {

uint64_t Mix(uint64_t hash, int64_t number) {  // FNV-1a over eight bytes
  for (int i = 0; i < 8; ++i) hash = (hash ^ (static_cast<uint64_t>(number) >> (8 * i) & 0xff)) * 0x100000001b3;
  return hash;
}

uint64_t HashOfLists(const Collective& collective) {
  uint64_t hash = 0xcbf29ce484222325;
  if (TraitsOf(collective.op).permutes) {
    for (const RankPair& pair : collective.pairs) hash = Mix(Mix(hash, pair.source), pair.target);
    return hash;
  }
  if (collective.counts.size() == 1) return 0;
  return std::accumulate(collective.counts.begin(), collective.counts.end(), hash, Mix);
}

}  // namespace

OpDescription DescriptionOf(const Collective& collective, const Communicator::Call& call) {
  return {.op = collective.op,
          .kind = static_cast<uint8_t>(collective.kind),
          .dtype = static_cast<uint8_t>(collective.dtype),
          .root = collective.root,
          .pieces = static_cast<int32_t>(collective.counts.size()),
          .count = collective.count(),
          .lists = HashOfLists(collective),
          .evidence = call.evidence,
          .compared_only = call.compared_only,
          .is_transfer = call.is_transfer};
}

std::string Describe(const OpDescription& d, const std::string& label) {
  std::ostringstream text;
  const CollectiveTraits traits = TraitsOf(d.op);
  text << (d.is_transfer ? "transfer" : traits.name);
  if (traits.reduces) text << " " << ReduceKindName(static_cast<ReduceKind>(d.kind));
  if (traits.has_root() && !d.is_transfer) text << (traits.from_root ? " from rank " : " to rank ") << d.root;
  if (traits.moves_data) text << " " << DTypeName(static_cast<DType>(d.dtype)) << "[" << d.count << "]";
  if (d.pieces != 1) text << " in " << d.pieces << " pieces";
  // Nothing more is known about a peer's lists.
  if (d.lists != 0) text << absl::StrFormat(" (%s 0x%016x)", traits.permutes ? "pairs" : "counts", d.lists);
  text << " `" << label << "`";
  return text.str();
}

std::string DifferenceOf(int rank_a, const Communicator::Evidence& a, int rank_b, const Communicator::Evidence& b) {
  auto text = [](const std::array<char, 128>& names) { return names[0] == 0 ? "none" : names.data(); };
  auto hashes = [](uint64_t x, uint64_t y) { return absl::StrFormat(" (0x%016x and 0x%016x)", x, y); };
  if (a.program != b.program && (a.program == 0 || b.program == 0)) {
    return absl::StrFormat("rank %d calls no program there: all ranks make the same calls, in the same order",
                           a.program == 0 ? rank_a : rank_b);
  }
  if (a.program != b.program) return "they run different programs" + hashes(a.program, b.program);
  if (a.assignments != b.assignments) {
    return absl::StrFormat("different states were assigned on them (rank %d: %s; rank %d: %s)", rank_a,
                           text(a.assigned), rank_b, text(b.assigned));
  }
  if (a.settings != b.settings) {
    return absl::StrFormat("settings have different values on them (set on rank %d: %s; on rank %d: %s)", rank_a,
                           text(a.set), rank_b, text(b.set));
  }
  if (a.inputs != b.inputs) return "inputs that are replicated have different contents" + hashes(a.inputs, b.inputs);
  if (a.states != b.states) return "replicas of the states differ" + hashes(a.states, b.states);
  return "";
}

}  // namespace lockstep
