// Builds a Program for a backend, which walks the graph, asks for the storages of operands, and adds kernels with the
// storages of their results. Nodes that need no kernel are lowered here: constants, reshapes (another name for the same
// bytes), collectives, pushes to parameter servers and pulls. States that only servers have (planning/served_states.h)
// are not part of the program.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "backends/planning/own_part.h"
#include "backends/planning/program.h"
#include "core/graph.h"
#include "core/status.h"

namespace lockstep {

class ProgramBuilder {
 public:
  // Starts with a storage for each input and state of `graph`, which must outlive the builder. With a place, the
  // program has the part of the graph that is computed there: the nodes for which part().Computes() is true.
  explicit ProgramBuilder(const Graph& graph, std::optional<PlaceOfPart> place = std::nullopt);

  const OwnPart& part() const { return part_; }

  // Returns the mesh position of the axis that the node's attribute names.
  int MeshAxisOf(const Node& node) const;
  int64_t RanksAlong(const Node& node) const;  // the size of that axis

  // Returns true if LowerCommon needs the operands of `node` row-major. An all_reduce does not depend on their order.
  bool TakesRowMajor(const Node& node) const;
  // Lowers `node` if it needs no kernel of the backend; returns false if it does.
  absl::StatusOr<bool> LowerCommon(const Node& node);

  // Returns the storages of `value`, one for each layout in which it exists; the one in which it was produced is first.
  const std::vector<int>& StoragesOf(Value value) const;
  // Returns the storage of `value` in `layout`, or -1.
  int Find(Value value, const std::string& layout) const;
  const Storage& storage(int id) const { return program_.storage(id); }

  // Adds a storage for `value`. `bytes` may exceed those of the type, for padding.
  int Define(Value value, std::string layout, uint64_t bytes);
  int Define(Value value) { return Define(value, "", value.type().num_bytes()); }
  // Adds a storage that is not for a value of the graph.
  int DefineTemporary(std::string name, DType dtype, std::string layout, uint64_t bytes);
  // Defines `value` as the bytes of `storage`.
  void DefineAlias(Value value, int storage, std::string layout);

  // Adds a kernel; its source is the node's.
  Instruction& Add(const Node& node, Kernel kernel, std::vector<int> reads, std::vector<int> writes);

  // Marks the last instruction as one that may refuse the caller's data. Requires an instruction.
  void MarkRefusal() { program_.instructions.back().may_refuse = true; }

  // InfoOf returns what the node's collective tells the communicator; AddCollective adds it between storages of one
  // dtype.
  CollectiveInfo InfoOf(const Node& node, DType dtype) const;
  void AddCollective(const Node& node, CollectiveInfo info, std::vector<int> reads, std::vector<int> writes);
  // Returns true if the ranks' slices of operand i, or of result i, are contiguous in memory, as the communicator
  // requires. Also true for collectives that neither scatter nor gather. If false, the backend moves elements before or
  // after the collective.
  static bool TakesContiguous(const Node& node, size_t i);
  static bool GivesContiguous(const Node& node, size_t i);
  static bool IsContiguous(const Node& node);  // of all operands and results
  // Returns the type of one rank's slice of operand i of a collective that scatters, or of result i of one that
  // gathers, and the dimension of the slices.
  std::pair<TensorType, int64_t> SliceTaken(const Node& node, size_t i) const;
  std::pair<TensorType, int64_t> SliceGiven(const Node& node, size_t i) const;

  // Returns the program with its outputs. `row_major` is called for each output that exists only in other layouts, and
  // must return a storage that holds it row-major.
  absl::StatusOr<Program> Finish(const std::function<absl::StatusOr<int>(Value)>& row_major);

 private:
  // Returns the bytes of a storage that a kernel for `node` reads.
  uint64_t BytesRead(const Node& node, int storage) const;
  Work WorkOf(const Node& node, const Instruction& instruction) const;
  absl::Status LowerConstant(const Node& node);
  absl::Status LowerCollective(const Node& node);
  // Returns -1 for no name.
  absl::StatusOr<int> PositionOfSetting(const Node& node, const std::string& name) const;
  absl::Status LowerPush(const Node& node);
  absl::Status LowerPull(const Node& node);
  // Lowers a collective that moves a value of one rank: on this rank with its operand if it is the source, and its
  // result if it is a target.
  absl::Status LowerPartialCollective(const Node& node);
  // Along an axis of one rank each result is its operand, in the same memory.
  bool IsAlongOneRank(const Node& node) const;

  const Graph& graph_;
  const OwnPart part_;
  Program program_;
  std::unordered_map<Value, std::vector<int>, ValueHash> storages_;
  std::set<std::string, std::less<>> kept_;  // states that only servers have
};

}  // namespace lockstep
