// A call of Communicator as plain data: what implementations that pass calls on, compare them or cut them into chunks
// have in common. Pure functions; any thread.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/collective_op.h"
#include "core/dtype.h"
#include "core/placement.h"
#include "runtime/comm/collective/description.h"
#include "runtime/communicator.h"

namespace lockstep {

struct CollectiveCall {
  OpDescription description;    // holds the numbers, and a hash of the lists
  std::vector<int64_t> counts;  // by piece; one piece but in buckets
  std::vector<RankPair> pairs;  // of a permute

  DType dtype() const { return static_cast<DType>(description.dtype); }
  ReduceKind kind() const { return static_cast<ReduceKind>(description.kind); }
};

// One for each start.
CollectiveCall AllReduceCall(int64_t count, DType dtype, ReduceKind kind, const Communicator::Call& call);
CollectiveCall BroadcastCall(int64_t count, DType dtype, int root, const Communicator::Call& call);
CollectiveCall AllGatherCall(std::span<const int64_t> counts, DType dtype, const Communicator::Call& call);
CollectiveCall ReduceScatterCall(std::span<const int64_t> counts, DType dtype, ReduceKind kind,
                                 const Communicator::Call& call);
CollectiveCall AllToAllCall(int64_t count, DType dtype, const Communicator::Call& call);
CollectiveCall PermuteCall(int64_t count, DType dtype, std::span<const RankPair> pairs, const Communicator::Call& call);
CollectiveCall GatherCall(int64_t count, DType dtype, int root, const Communicator::Call& call);
CollectiveCall ScatterCall(int64_t count, DType dtype, int root, const Communicator::Call& call);
// Of what moves no data.
CollectiveCall CallOf(Opcode opcode);

// The same collective on another communicator; all that `call` says is said there.
absl::StatusOr<Communicator::Ticket> StartOn(Communicator& communicator, const CollectiveCall& collective,
                                             const void* input, void* output, const Communicator::Call& call);

// Where a piece lies in the operands of each rank.
struct Piece {
  int64_t count = 0;                         // elements of one rank's share
  size_t input_begin = 0, output_begin = 0;  // bytes
};
std::vector<Piece> PiecesOf(const CollectiveCall& collective, int world_size);

// The bytes of a rank's operands.
size_t InputBytes(const CollectiveCall& collective, int world_size);
size_t OutputBytes(const CollectiveCall& collective, int world_size);

// Whether the rank's input is read: of what has a source alone, the root's.
bool ReadsInput(const CollectiveCall& collective, int rank);
// Whether nobody sends anything to the rank, whose output is then zeros. It writes them itself.
bool GetsNothing(const CollectiveCall& collective, int rank);

}  // namespace lockstep
