// Which sizes of a node can change together, by the inference of its op's types.
//
// Thread-safe: pure functions.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::verify {

// A size that a node has: a dimension of an operand, or a number in an attribute.
struct Slot {
  std::optional<size_t> operand;  // none: of the attribute
  std::string attribute;
  size_t at = 0;  // the dimension, or the entry of a list
  int64_t size = 0;
  bool is_of_result = false;  // an entry of an attribute that is the dimension `at` of the result
  bool is_number = false;     // an attribute that is no list
};
using Slots = std::vector<Slot>;

struct SizeSets {
  // Slots that inference lets change together, by a common factor. Sets change independently of each other. The slots
  // of one set have equal sizes, or multiples of that of the first.
  std::vector<Slots> sets;
  Slots stuck;  // dimensions of operands that can change only in a way that is not known
};

// Doubles the sizes above 1 of `node` one at a time, and together where inference refuses that.
SizeSets SizeSetsOf(const Node& node);

// The types of the node's results, or inference's error, if these slots have these sizes.
absl::StatusOr<std::vector<TensorType>> InferWith(const Node& node, const Slots& slots,
                                                  const std::vector<int64_t>& sizes);

// The same if all slots have twice their sizes.
absl::StatusOr<std::vector<TensorType>> InferDoubled(const Node& node, const Slots& slots);

}  // namespace lockstep::verify
