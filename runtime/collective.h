// A collective as data: what a communicator is asked to do (runtime/communicator.h), and where its pieces lie in the
// operands. Plain values and pure functions; any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/collective_op.h"
#include "core/dtype.h"
#include "core/placement.h"

namespace lockstep {

// The beginning of a piece of a bucket is aligned to this many bytes.
inline constexpr size_t kPieceAlignment = 64;

// Equal on all ranks. In the comments n is the number of ranks, x[r] the input of rank r, y the output of rank r', and
// i runs over `count` elements. Counts may be 0, and need not be multiples of n.
struct Collective {
  CollectiveOp op = CollectiveOp::kBarrier;
  DType dtype = DType::kF32;
  ReduceKind kind = ReduceKind::kSum;  // if op reduces
  int root = 0;                        // if op has one
  std::vector<int64_t> counts = {0};   // elements of a rank's slice, by piece; one piece at least
  std::vector<RankPair> pairs = {};    // if op permutes

  bool operator==(const Collective&) const = default;

  // The elements of all pieces.
  int64_t count() const;

  // y[i] = the reduction of all x[r][i]. In place if input == output.
  static Collective AllReduce(int64_t count, DType dtype, ReduceKind kind);
  // y[i] = x[root][i]. The other ranks' inputs are not read and may be null. In place if input == output.
  static Collective Broadcast(int64_t count, DType dtype, int root);

  // The next two take several tensors at once, the pieces of a bucket: piece p has counts[p] elements of each rank. In
  // each operand a piece begins at the next multiple of kPieceAlignment bytes, and all of its tensor lies together.
  // y[r * count + i] = x[r][i]. One piece is in place if input == output + r' * count elements.
  static Collective AllGather(std::span<const int64_t> counts, DType dtype);
  static Collective AllGather(int64_t count, DType dtype) { return AllGather(std::span(&count, 1), dtype); }
  // y[i] = the reduction of all x[r][r' * count + i]. One piece is in place if output == input + r' * count elements.
  static Collective ReduceScatter(std::span<const int64_t> counts, DType dtype, ReduceKind kind);
  static Collective ReduceScatter(int64_t count, DType dtype, ReduceKind kind) {
    return ReduceScatter(std::span(&count, 1), dtype, kind);
  }

  // The rest is never in place.
  // y[r * count + i] = x[r][r' * count + i].
  static Collective AllToAll(int64_t count, DType dtype);
  // y[i] = x[r][i] for the pair (r, r'); 0 if no pair has r' as its target. A rank is the source of one pair at most,
  // and the target of one.
  static Collective Permute(int64_t count, DType dtype, std::span<const RankPair> pairs);
  // On the root, y[r * count + i] = x[r][i]; on other ranks 0. All outputs have n * count elements.
  static Collective Gather(int64_t count, DType dtype, int root);
  // y[i] = x[root][r' * count + i]. The other ranks' inputs are not read and may be null.
  static Collective Scatter(int64_t count, DType dtype, int root);
};

// The place of a piece in the operands of each rank.
struct Piece {
  int64_t count = 0;                         // elements of one rank's slice
  size_t input_begin = 0, output_begin = 0;  // bytes
};
std::vector<Piece> PiecesOf(const Collective& collective, int world_size);

// The bytes of a rank's operands.
size_t InputBytes(const Collective& collective, int world_size);
size_t OutputBytes(const Collective& collective, int world_size);

// True if the rank's input is read: false on ranks other than the root if only the root has something to give.
bool ReadsInput(const Collective& collective, int rank);
// True if no rank sends anything to this one. Its output is then zeros, which it writes itself.
bool GetsNothing(const Collective& collective, int rank);

}  // namespace lockstep
