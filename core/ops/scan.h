// The form of a `scan` node: the roles of its operands and results and of those of its body. For the op itself and for
// passes and backends that handle loops. Values in a body are those of one iteration.

#pragma once

#include "core/graph.h"

namespace lockstep {

// The order of operands, and of the body's inputs: carried, scanned, constant. The order of results, the node's and the
// body's: carried, stacked, summed. Borrows the node's attributes.
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
  // The position in scanned operands and stacked results that iteration i reads and writes.
  int64_t position(int64_t i) const { return reverse ? length - 1 - i : i; }
};

// The type of `length` values of `type`, stacked along a new dimension 0.
TensorType Stacked(const TensorType& type, int64_t length);

}  // namespace lockstep
