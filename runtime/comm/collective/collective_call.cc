#include "runtime/comm/collective/collective_call.h"

#include <algorithm>
#include <numeric>

#include "core/status.h"
#include "runtime/comm/collective/chunks.h"

namespace lockstep {
namespace {

uint64_t Mix(uint64_t hash, int64_t number) {  // FNV-1a, of eight bytes
  for (int i = 0; i < 8; ++i) hash = (hash ^ (static_cast<uint64_t>(number) >> (8 * i) & 0xff)) * 0x100000001b3;
  return hash;
}
constexpr uint64_t kNoneYet = 0xcbf29ce484222325;

CollectiveCall Make(Opcode opcode, std::span<const int64_t> counts, DType dtype, const Communicator::Call& call) {
  CollectiveCall made;
  made.counts.assign(counts.begin(), counts.end());
  OpDescription& d = made.description;
  d.opcode = opcode;
  d.dtype = static_cast<uint8_t>(dtype);
  d.evidence = call.evidence;
  d.compared_only = call.compared_only;
  d.is_transfer = call.is_transfer;
  d.pieces = static_cast<int32_t>(counts.size());
  d.count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (counts.size() > 1) d.lists = std::accumulate(counts.begin(), counts.end(), kNoneYet, Mix);
  return made;
}

CollectiveCall Make(Opcode opcode, int64_t count, DType dtype, const Communicator::Call& call) {
  return Make(opcode, std::span(&count, 1), dtype, call);
}

}  // namespace

CollectiveCall AllReduceCall(int64_t count, DType dtype, ReduceKind kind, const Communicator::Call& call) {
  CollectiveCall made = Make(Opcode::kAllReduce, count, dtype, call);
  made.description.kind = static_cast<uint8_t>(kind);
  return made;
}

CollectiveCall BroadcastCall(int64_t count, DType dtype, int root, const Communicator::Call& call) {
  CollectiveCall made = Make(Opcode::kBroadcast, count, dtype, call);
  made.description.root = root;
  return made;
}

CollectiveCall AllGatherCall(std::span<const int64_t> counts, DType dtype, const Communicator::Call& call) {
  return Make(Opcode::kAllGather, counts, dtype, call);
}

CollectiveCall ReduceScatterCall(std::span<const int64_t> counts, DType dtype, ReduceKind kind,
                                 const Communicator::Call& call) {
  CollectiveCall made = Make(Opcode::kReduceScatter, counts, dtype, call);
  made.description.kind = static_cast<uint8_t>(kind);
  return made;
}

CollectiveCall AllToAllCall(int64_t count, DType dtype, const Communicator::Call& call) {
  return Make(Opcode::kAllToAll, count, dtype, call);
}

CollectiveCall PermuteCall(int64_t count, DType dtype, std::span<const RankPair> pairs,
                           const Communicator::Call& call) {
  CollectiveCall made = Make(Opcode::kPermute, count, dtype, call);
  made.pairs.assign(pairs.begin(), pairs.end());
  made.description.lists = kNoneYet;
  for (const RankPair& pair : pairs)
    made.description.lists = Mix(Mix(made.description.lists, pair.source), pair.target);
  return made;
}

CollectiveCall GatherCall(int64_t count, DType dtype, int root, const Communicator::Call& call) {
  CollectiveCall made = Make(Opcode::kGather, count, dtype, call);
  made.description.root = root;
  return made;
}

CollectiveCall ScatterCall(int64_t count, DType dtype, int root, const Communicator::Call& call) {
  CollectiveCall made = Make(Opcode::kScatter, count, dtype, call);
  made.description.root = root;
  return made;
}

CollectiveCall CallOf(Opcode opcode) { return Make(opcode, 0, DType::kF32, {}); }

absl::StatusOr<Communicator::Ticket> StartOn(Communicator& to, const CollectiveCall& c, const void* input, void* output,
                                             const Communicator::Call& call) {
  const OpDescription& d = c.description;
  switch (d.opcode) {
    case Opcode::kAllReduce: return to.StartAllReduce(input, output, d.count, c.dtype(), c.kind(), call);
    case Opcode::kBroadcast: return to.StartBroadcast(input, output, d.count, c.dtype(), d.root, call);
    case Opcode::kAllGather: return to.StartAllGather(input, output, c.counts, c.dtype(), call);
    case Opcode::kReduceScatter: return to.StartReduceScatter(input, output, c.counts, c.dtype(), c.kind(), call);
    case Opcode::kAllToAll: return to.StartAllToAll(input, output, d.count, c.dtype(), call);
    case Opcode::kPermute: return to.StartPermute(input, output, d.count, c.dtype(), c.pairs, call);
    case Opcode::kGather: return to.StartGather(input, output, d.count, c.dtype(), d.root, call);
    case Opcode::kScatter: return to.StartScatter(input, output, d.count, c.dtype(), d.root, call);
    case Opcode::kBarrier:
    case Opcode::kAllocate: break;  // never passed on
  }
  return Internal() << "no collective " << static_cast<int>(d.opcode);
}

namespace {

size_t AlignPiece(size_t bytes) { return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment; }

// The shares that a rank's operand holds.
size_t InputShares(const CollectiveCall& c, int world_size) {
  return TraitsOf(c.description.opcode).scatters ? static_cast<size_t>(world_size) : 1;
}
size_t OutputShares(const CollectiveCall& c, int world_size) {
  return TraitsOf(c.description.opcode).gathers ? static_cast<size_t>(world_size) : 1;
}

size_t BytesOf(const CollectiveCall& c, size_t shares) {
  if (c.description.compared_only) return 0;
  size_t end = 0;
  for (const int64_t count : c.counts) end = AlignPiece(end) + shares * static_cast<size_t>(count) * SizeOf(c.dtype());
  return end;
}

}  // namespace

std::vector<Piece> PiecesOf(const CollectiveCall& c, int world_size) {
  std::vector<Piece> pieces;
  size_t input_end = 0, output_end = 0;
  for (const int64_t count : c.counts) {
    const Piece piece{count, AlignPiece(input_end), AlignPiece(output_end)};
    const size_t bytes = static_cast<size_t>(count) * SizeOf(c.dtype());
    input_end = piece.input_begin + InputShares(c, world_size) * bytes;
    output_end = piece.output_begin + OutputShares(c, world_size) * bytes;
    pieces.push_back(piece);
  }
  return pieces;
}

size_t InputBytes(const CollectiveCall& c, int world_size) { return BytesOf(c, InputShares(c, world_size)); }
size_t OutputBytes(const CollectiveCall& c, int world_size) { return BytesOf(c, OutputShares(c, world_size)); }

bool ReadsInput(const CollectiveCall& c, int rank) {
  return !TraitsOf(c.description.opcode).from_root || rank == c.description.root;
}

bool GetsNothing(const CollectiveCall& c, int rank) {
  const OpcodeTraits traits = TraitsOf(c.description.opcode);
  if (traits.to_root) return rank != c.description.root;
  return traits.permutes &&
         std::none_of(c.pairs.begin(), c.pairs.end(), [&](const RankPair& pair) { return pair.target == rank; });
}

}  // namespace lockstep
