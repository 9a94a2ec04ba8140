#include "runtime/collective.h"

#include <algorithm>
#include <numeric>

namespace lockstep {

int64_t Collective::count() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

Collective Collective::AllReduce(int64_t count, DType dtype, ReduceKind kind) {
  return {.op = CollectiveOp::kAllReduce, .dtype = dtype, .kind = kind, .counts = {count}};
}

Collective Collective::Broadcast(int64_t count, DType dtype, int root) {
  return {.op = CollectiveOp::kBroadcast, .dtype = dtype, .root = root, .counts = {count}};
}

Collective Collective::AllGather(std::span<const int64_t> counts, DType dtype) {
  return {.op = CollectiveOp::kAllGather, .dtype = dtype, .counts = {counts.begin(), counts.end()}};
}

Collective Collective::ReduceScatter(std::span<const int64_t> counts, DType dtype, ReduceKind kind) {
  return {.op = CollectiveOp::kReduceScatter, .dtype = dtype, .kind = kind, .counts = {counts.begin(), counts.end()}};
}

Collective Collective::AllToAll(int64_t count, DType dtype) {
  return {.op = CollectiveOp::kAllToAll, .dtype = dtype, .counts = {count}};
}

Collective Collective::Permute(int64_t count, DType dtype, std::span<const RankPair> pairs) {
  return {.op = CollectiveOp::kPermute, .dtype = dtype, .counts = {count}, .pairs = {pairs.begin(), pairs.end()}};
}

Collective Collective::Gather(int64_t count, DType dtype, int root) {
  return {.op = CollectiveOp::kGather, .dtype = dtype, .root = root, .counts = {count}};
}

Collective Collective::Scatter(int64_t count, DType dtype, int root) {
  return {.op = CollectiveOp::kScatter, .dtype = dtype, .root = root, .counts = {count}};
}

namespace {

size_t AlignPiece(size_t bytes) { return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment; }

// The number of slices in a rank's operand.
size_t InputSlices(const Collective& c, int world_size) {
  return TraitsOf(c.op).scatters ? static_cast<size_t>(world_size) : 1;
}
size_t OutputSlices(const Collective& c, int world_size) {
  return TraitsOf(c.op).gathers ? static_cast<size_t>(world_size) : 1;
}

size_t BytesOf(const Collective& c, size_t slices) {
  size_t end = 0;
  for (const int64_t count : c.counts) end = AlignPiece(end) + slices * static_cast<size_t>(count) * SizeOf(c.dtype);
  return end;
}

}  // namespace

std::vector<Piece> PiecesOf(const Collective& c, int world_size) {
  std::vector<Piece> pieces;
  size_t input_end = 0, output_end = 0;
  for (const int64_t count : c.counts) {
    const Piece piece{count, AlignPiece(input_end), AlignPiece(output_end)};
    const size_t bytes = static_cast<size_t>(count) * SizeOf(c.dtype);
    input_end = piece.input_begin + InputSlices(c, world_size) * bytes;
    output_end = piece.output_begin + OutputSlices(c, world_size) * bytes;
    pieces.push_back(piece);
  }
  return pieces;
}

size_t InputBytes(const Collective& c, int world_size) { return BytesOf(c, InputSlices(c, world_size)); }
size_t OutputBytes(const Collective& c, int world_size) { return BytesOf(c, OutputSlices(c, world_size)); }

bool ReadsInput(const Collective& c, int rank) { return !TraitsOf(c.op).from_root || rank == c.root; }

bool GetsNothing(const Collective& c, int rank) {
  const CollectiveTraits traits = TraitsOf(c.op);
  if (traits.to_root) return rank != c.root;
  return traits.permutes &&
         std::none_of(c.pairs.begin(), c.pairs.end(), [&](const RankPair& pair) { return pair.target == rank; });
}

}  // namespace lockstep
