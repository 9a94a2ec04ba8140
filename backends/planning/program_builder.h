// How a backend writes a Program: it walks the graph, asks where the operands are, and adds a kernel with the storages
// of the results. What needs no kernel is done here: constants, reshapes (another name for the same bytes),
// collectives, pushes to parameter servers and pulls. States that servers alone have (planning/served_states.h) are
// none of the program's.

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
  // Starts with a storage for each input and state of `graph`, which outlives the builder. With a place, of the part of
  // the graph that is computed there: for nodes that part().Computes().
  explicit ProgramBuilder(const Graph& graph, std::optional<PlaceOfPart> place = std::nullopt);

  const OwnPart& part() const { return part_; }

  // The position in the mesh of the axis that the node's attribute names.
  int MeshAxisOf(const Node& node) const;
  int64_t RanksAlong(const Node& node) const;  // the size of that axis

  // Lowers `node` if it needs no kernel of the backend; false if it does.
  absl::StatusOr<bool> LowerCommon(const Node& node);

  // The storages that hold `value`, one for each layout in which it exists, the one in which it was produced first.
  const std::vector<int>& StoragesOf(Value value) const;
  // The one of them in `layout`, or -1.
  int Find(Value value, const std::string& layout) const;
  const Storage& storage(int id) const { return program_.storage(id); }

  // A new storage that will hold `value`. `bytes` may exceed those of the type, for padding.
  int Define(Value value, std::string layout, uint64_t bytes);
  int Define(Value value) { return Define(value, "", value.type().num_bytes()); }
  // A storage of no value of the graph.
  int DefineTemporary(std::string name, DType dtype, std::string layout, uint64_t bytes);
  // `value` is the bytes of `storage`.
  void DefineAlias(Value value, int storage, std::string layout);

  // Adds a kernel; its source is the node's.
  Instruction& Add(const Node& node, Kernel kernel, std::vector<int> reads, std::vector<int> writes);

  // The last instruction, of which there has to be one, may refuse the caller's data.
  void MarkRefusal() { program_.instructions.back().may_refuse = true; }

  // Adds a collective between storages of `dtype`: what its node says to the communicator.
  CollectiveInfo InfoOf(const Node& node, DType dtype) const;
  void AddCollective(const Node& node, CollectiveInfo info, std::vector<int> reads, std::vector<int> writes);
  // Whether the ranks' slices of operand i, and of result i, are contiguous in memory, as the communicator wants them;
  // as are those of what neither scatters nor gathers. For others the backend moves elements before or after the
  // collective.
  static bool TakesContiguous(const Node& node, size_t i);
  static bool GivesContiguous(const Node& node, size_t i);
  static bool IsContiguous(const Node& node);  // of all operands and results
  // The type of one rank's slice of operand i of what scatters, and of result i of what gathers, and the dimension
  // along which it is one.
  std::pair<TensorType, int64_t> SliceTaken(const Node& node, size_t i) const;
  std::pair<TensorType, int64_t> SliceGiven(const Node& node, size_t i) const;

  // The program, with its outputs. `row_major` is called for an output that exists in other layouts only, and returns a
  // storage that holds it row-major.
  absl::StatusOr<Program> Finish(const std::function<absl::StatusOr<int>(Value)>& row_major);

 private:
  absl::Status LowerConstant(const Node& node);
  absl::Status LowerCollective(const Node& node);
  absl::Status LowerPush(const Node& node);
  absl::Status LowerPull(const Node& node);
  // What moves a value that one rank alone has: on this one with the operand if it gives, and the result if it gets it.
  absl::Status LowerOwnEnd(const Node& node);
  // Along an axis of one rank each result is its operand, as it lies in memory.
  bool IsAlongOneRank(const Node& node) const;

  const Graph& graph_;
  const OwnPart part_;
  Program program_;
  std::unordered_map<Value, std::vector<int>, ValueHash> storages_;
  std::set<std::string, std::less<>> kept_;  // states that servers alone have
};

}  // namespace lockstep
