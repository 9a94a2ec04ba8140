// An array on parameter servers, and the placement of its pieces: the values of a model are distributed over servers by
// bytes, and a large one is split evenly over all of them. Plain values; any thread.

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
  TensorType type;  // of the whole array
  int64_t begin = 0, count = 0;
  // True if an update waits for the gradients of all workers, which are added in worker order. A pull then waits for
  // the update.
  bool synchronous = false;
  // If not synchronous: the number of updates by which a worker may be ahead of the slowest one; -1: any number.
  int64_t max_staleness = -1;

  bool is_whole() const { return count == type.num_elements(); }
  // Returns the type of the piece as an array: with whole rows if the piece consists of them, otherwise
  // one-dimensional.
  TensorType piece_type() const;

  std::string ToString() const;  // the format that Parse reads
  static absl::StatusOr<ArrayInfo> Parse(std::string_view text);
};

struct PlacedPiece {
  int server = 0;
  int64_t begin = 0, count = 0;
};

// Places an array of this type: completely on the server with the fewest of `bytes`, which are by server; or, with more
// than `bigarray_bound` elements, in even pieces on all servers, split between rows if there are enough. Adds the array
// to `bytes`.
std::vector<PlacedPiece> PlaceArray(const TensorType& type, int64_t bigarray_bound, std::vector<int64_t>& bytes);

}  // namespace lockstep
