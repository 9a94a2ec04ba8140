// A collective as data: the operation that a communicator performs (runtime/communicator.h), and the positions of its
// pieces in the operands. Plain values and pure functions; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/collective_op.h"
#include "core/dtype.h"
#include "core/placement.h"

namespace lockstep {

// The beginning of each piece of a bucket is aligned to this many bytes.
inline constexpr size_t kPieceAlignment = 64;

// The description of a collective, equal on all ranks. In the comments, n is the number of ranks, x[r] the input of
// rank r, y the output of rank r', and i runs over `count` elements. Counts may be 0, and need not be multiples of n.
struct Collective {
  CollectiveOp op = CollectiveOp::kBarrier;
  DType dtype = DType::kF32;
  ReduceKind kind = ReduceKind::kSum;  // for ops that reduce
  int root = 0;                        // for ops with a root
  std::vector<int64_t> counts = {0};   // the elements of one rank's slice, for each piece; at least one piece
  std::vector<RankPair> pairs = {};    // for ops that permute

  bool operator==(const Collective&) const = default;

  // Returns the number of elements of all pieces.
  int64_t count() const;

  // y[i] = the reduction of all x[r][i]. In place if input == output.
  static Collective AllReduce(int64_t count, DType dtype, ReduceKind kind);
  // y[i] = x[root][i]. The inputs of the other ranks are not read and may be null. In place if input == output.
  static Collective Broadcast(int64_t count, DType dtype, int root);

  // The next two take several tensors at once, the pieces of a bucket: piece p has counts[p] elements of each rank. In
  // each operand, a piece begins at the next multiple of kPieceAlignment bytes, and its tensor is contiguous.
  // y[r * count + i] = x[r][i]. One piece is in place if input == output + r' * count elements.
  static Collective AllGather(std::span<const int64_t> counts, DType dtype);
  static Collective AllGather(int64_t count, DType dtype) { return AllGather(std::span(&count, 1), dtype); }
  // y[i] = the reduction of all x[r][r' * count + i]. One piece is in place if output == input + r' * count elements.
  static Collective ReduceScatter(std::span<const int64_t> counts, DType dtype, ReduceKind kind);
  static Collective ReduceScatter(int64_t count, DType dtype, ReduceKind kind) {
    return ReduceScatter(std::span(&count, 1), dtype, kind);
  }

  // The remaining collectives are never in place.
  // y[r * count + i] = x[r][r' * count + i].
  static Collective AllToAll(int64_t count, DType dtype);
  // y[i] = x[r][i] for the pair (r, r'); 0 if no pair has r' as its target. A rank is the source of at most one pair
  // and the target of at most one pair.
  static Collective Permute(int64_t count, DType dtype, std::span<const RankPair> pairs);
  // On the root, y[r * count + i] = x[r][i]; on the other ranks 0. All outputs have n * count elements.
  static Collective Gather(int64_t count, DType dtype, int root);
  // y[i] = x[root][r' * count + i]. The inputs of the other ranks are not read and may be null.
  static Collective Scatter(int64_t count, DType dtype, int root);
};

// The position of a piece in the operands of each rank.
struct Piece {
  int64_t count = 0;                         // elements of one rank's slice
  size_t input_begin = 0, output_begin = 0;  // bytes
};
std::vector<Piece> PiecesOf(const Collective& collective, int world_size);

// The size of one rank's operands in bytes.
size_t InputBytes(const Collective& collective, int world_size);
size_t OutputBytes(const Collective& collective, int world_size);

// Returns true if the collective reads this rank's input. False for ranks other than the root if only the root has an
// input.
bool ReadsInput(const Collective& collective, int rank);
// Returns true if no rank sends to this one. The rank itself fills its output with zeros.
bool GetsNothing(const Collective& collective, int rank);

}  // namespace lockstep
