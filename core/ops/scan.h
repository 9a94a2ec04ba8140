// What a `scan` node says, for the op itself and for passes and backends that are about loops: which operands and
// results of its body are which. Values in a body are those of one iteration.

#pragma once

#include "core/graph.h"

namespace lockstep {

// Of operands, and of the body's inputs: carried, scanned, constant. Of results, the node's and the body's: carried,
// stacked, summed. Borrowed from the node's attributes.
struct ScanForm {
  const Graph* body = nullptr;
  size_t carried = 0, scanned = 0, summed = 0;
  int64_t length = 0;
  bool reverse = false;

  explicit ScanForm(const AttributeMap& attributes);
  explicit ScanForm(const Node& node) : ScanForm(node.attributes()) {}

  size_t num_inputs() const { return body->inputs().size(); }
  size_t num_results() const { return body->results().size(); }
  size_t first_constant() const { return carried + scanned; }
  size_t first_summed() const { return num_results() - summed; }
  size_t stacked() const { return first_summed() - carried; }
  bool is_scanned(size_t input) const { return input >= carried && input < first_constant(); }
  bool is_stacked(size_t result) const { return result >= carried && result < first_summed(); }
  // The position, of scanned operands and stacked results, that iteration i is about.
  int64_t position(int64_t i) const { return reverse ? length - 1 - i : i; }
};

// The type of `length` values of `type`, one after the other.
TensorType Stacked(const TensorType& type, int64_t length);

}  // namespace lockstep
