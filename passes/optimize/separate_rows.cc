#include "passes/optimize/separate_rows.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/builder.h"
#include "core/op_def.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;

// Returns the first dimensions of `shape` whose product is `rows`; empty if that is only one dimension, or if there are
// none.
Ints DimsOfRows(const Shape& shape, int64_t rows) {
  int64_t product = 1;
  for (int64_t i = 0; i < shape.rank() && product < rows; ++i) {
    product *= shape[i];
    if (product == rows && i > 0) return Ints(shape.dims().begin(), shape.dims().begin() + i + 1);
  }
  return {};
}

bool StartsWith(const Shape& shape, const Ints& dims) {
  return shape.rank() >= static_cast<int64_t>(dims.size()) &&
         std::equal(dims.begin(), dims.end(), shape.dims().begin());
}

// Returns true if the node may be duplicated, since it is cheap.
bool MayBeTwice(const Node& node) { return node.Is("reshape") || node.Is("broadcast"); }

// The nodes between a reshape that separates rows and the reshapes that merged them.
class RowsRegion {
 public:
  RowsRegion(Graph& graph, Node& apart, Ints dims) : graph_(graph), apart_(apart), dims_(std::move(dims)) {}

  // Finds the nodes. Returns true if all of them can be computed on separate rows.
  bool Find() { return Add(apart_.operand(0)) && has_products_ && IsUsedHereAlone(); }

  absl::Status Rewrite() {
    std::vector<Node*> in_order;
    for (Node& node : graph_.nodes()) {
      if (nodes_.contains(&node)) in_order.push_back(&node);
    }
    for (Node* node : in_order) RETURN_IF_ERROR(Copy(*node));  // inserted before the node
    Builder b(graph_, &apart_, apart_.source());
    const Value result = b.Reshape(separate_.at(apart_.operand(0)), apart_.type().shape);
    RETURN_IF_ERROR(b.status());
    graph_.ReplaceUses(apart_.result(), result);
    graph_.Erase(&apart_);
    for (auto it = in_order.rbegin(); it != in_order.rend(); ++it) {
      if (!graph_.IsUsed((*it)->result())) EraseMerged(**it);
    }
    return absl::OkStatus();
  }

 private:
  int64_t rows() const { return apart_.operand(0).shape()[0]; }

  bool Add(Value value) {
    Node& node = *value.node;
    if (nodes_.contains(&node)) return true;
    if (node.num_results() != 1 || value.shape().rank() == 0 || value.shape()[0] != rows()) return false;
    if (node.Is("reshape") && StartsWith(node.operand(0).shape(), dims_)) {
      // This reshape merges the rows: the region ends here. It may have other users.
    } else if (node.Is("matmul")) {
      const bool is_of_rows = node.operand(0).shape().rank() == 2 && !node.attr<bool>("transpose_a") &&
                              node.operand(1).shape().rank() == 2 && !node.attr<bool>("sum_batch");
      if (!is_of_rows || node.operand(0) == node.operand(1) || !Add(node.operand(0))) return false;
      has_products_ = true;
    } else if (node.Is("broadcast")) {
      const Ints& dims = node.attr<Ints>("dims");
      if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return false;
    } else if (node.op().has_trait(kElementwise)) {
      for (Value operand : node.operands()) {
        if (!Add(operand)) return false;
      }
    } else {
      return false;
    }
    nodes_.insert(&node);
    return true;
  }

  bool IsUsedHereAlone() const {
    for (const Node* node : nodes_) {
      if (MayBeTwice(*node)) continue;
      const auto is_here = [&](const Node* user) { return user == &apart_ || nodes_.contains(user); };
      if (!std::all_of(node->users().begin(), node->users().end(), is_here)) return false;
    }
    return std::none_of(graph_.results().begin(), graph_.results().end(), [&](const Result& result) {
      return nodes_.contains(result.value.node) && !MayBeTwice(*result.value.node);
    });
  }

  // Returns the shape with separate dimensions of rows; the other dimensions stay.
  Shape Separate(const Shape& merged) const {
    Ints dims = dims_;
    dims.insert(dims.end(), merged.dims().begin() + 1, merged.dims().end());
    return Shape(std::move(dims));
  }

  absl::Status Copy(Node& node) {
    if (node.Is("matmul")) {
      const Value rows = node.operand(0), matrix = node.operand(1);
      ValueMap map = {{rows, separate_.at(rows)}, {matrix, matrix}};
      RETURN_IF_ERROR(graph_.InsertCopy(node, map, &node).status());
      separate_[node.result()] = map.at(node.result());
      return absl::OkStatus();
    }
    if (node.op().has_trait(kElementwise)) return graph_.InsertCopy(node, separate_, &node).status();
    Builder b(graph_, &node, node.source());
    Value copy;
    if (node.Is("reshape")) {
      copy = b.Reshape(node.operand(0), Separate(node.type().shape));
    } else {
      Ints dims = node.attr<Ints>("dims");
      for (int64_t& dim : dims) dim += static_cast<int64_t>(dims_.size()) - 1;
      copy = b.Broadcast(node.operand(0), Separate(node.type().shape), std::move(dims));
    }
    RETURN_IF_ERROR(b.status());
    separate_[node.result()] = copy;
    return absl::OkStatus();
  }

  void EraseMerged(Node& node) {
    const std::string name = node.result_name();
    const Value separate = separate_.at(node.result());
    const bool is_copy = !node.Is("reshape");  // a reshape may have been replaced by its operand
    graph_.Erase(&node);
    if (is_copy) graph_.SetName(separate, name);
  }

  Graph& graph_;
  Node& apart_;
  const Ints dims_;
  std::unordered_set<const Node*> nodes_;
  bool has_products_ = false;
  ValueMap separate_;  // from results of nodes_
};

absl::StatusOr<bool> RunSeparateRows(Graph& graph) {
  if (!graph.mesh().axes().empty()) return false;
  bool changed = false;
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    Node& node = *it++;
    if (!node.Is("reshape") || node.operand(0).shape().rank() == 0 || !graph.IsUsed(node.result())) continue;
    const Ints dims = DimsOfRows(node.type().shape, node.operand(0).shape()[0]);
    if (dims.empty()) continue;
    RowsRegion region(graph, node, dims);
    if (!region.Find()) continue;
    RETURN_IF_ERROR(region.Rewrite());
    changed = true;
  }
  return changed;
}

}  // namespace

Pass SeparateRows() { return {"separate-rows", RunSeparateRows}; }

}  // namespace lockstep::passes
