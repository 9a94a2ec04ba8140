// An array that parameter servers keep under a key, and where its pieces are: values of a model are spread over servers
// by bytes, and a large one is cut evenly over all of them. Plain values; any thread.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "core/status.h"

namespace lockstep {

// One server's piece of an array: elements [begin, begin + count) in row-major order.
struct ArrayInfo {
  TensorType type;  // of the whole
  int64_t begin = 0, count = 0;
  // An update waits for the gradients of all workers, which are added in their order; a pull waits for the update.
  bool synchronous = false;
  // Else: how many updates a worker may be ahead of the slowest one; -1: any number.
  int64_t max_staleness = -1;

  bool is_whole() const { return count == type.num_elements(); }
  // The piece as an array of its own: of whole rows where it is that, else of one dimension.
  TensorType piece_type() const;

  std::string ToString() const;  // which Parse reads
  static absl::StatusOr<ArrayInfo> Parse(std::string_view text);
};

struct PlacedPiece {
  int server = 0;
  int64_t begin = 0, count = 0;
};

// Where an array of this type goes: whole to the server with the fewest of `bytes`, by server, to which its own are
// added; or, with more than `bigarray_bound` elements, in even pieces to all, cut between rows where there are enough.
std::vector<PlacedPiece> PlaceArray(const TensorType& type, int64_t bigarray_bound, std::vector<int64_t>& bytes);

}  // namespace lockstep
