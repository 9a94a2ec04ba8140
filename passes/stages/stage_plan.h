// Assigns the nodes of a training step to the stages of a pipeline, for CutIntoStages alone (cut_into_stages.h).
// Borrows the step, which must not change while the plan lives.
//
// The forward part of a micro-batch is cut, in the order of its nodes, where few bytes are alive at the cut and such
// that the stages cost about the same (balanced_cut.h). Other nodes go where their operands are: backward nodes to
// their forward values, optimizers and states to their weights. Nodes that are cheap enough to be computed where they
// are read, such as a constant, a broadcast or a slice of the batch, have no stage.

#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/graph.h"
#include "core/status.h"

namespace lockstep::passes {

struct StageOptions {
  int64_t stages = 1;
  // The cost of a byte between two stages, as the number of operations of a kernel that take as long.
  double operations_per_byte = 10;
  // The mesh of the result, with its axes in order; empty: the axes of the step, then the axis of stages.
  Mesh mesh = {};
};

class StagePlan {
 public:
  // The part of the step that a node is in: the loop over micro-batches, or before or after it. In a step without a
  // loop, the nodes that its loss depends on are the micro-batch, and the rest comes after it.
  enum class Part : uint8_t { kBefore, kMicroBatch, kAfter };
  enum class Where : uint8_t {
    kStage,           // on one stage
    kEverywhere,      // cheap, and depends on data, settings and constants only: computed on each stage that uses it
    kCopiedToReaders  // cheap, and depends on values with a stage: copied to each stage that uses it
  };
  struct Item {
    const Node* node = nullptr;
    Part part = Part::kMicroBatch;
    Where where = Where::kStage;
    bool is_forward = false;
    bool differs_by_micro_batch = false;  // true if it differs between micro-batches
    int64_t stage = -1;                   // -1: no stage
  };

  // Makes the plan. Returns an error if there are fewer nodes to cut than stages, if micro-batches carry values from
  // one to the next, or if they need two passes over the model.
  static absl::StatusOr<StagePlan> Make(const Graph& step, const StageOptions& options);

  // Returns the loop over micro-batches; null if there is none.
  const Node* loop() const { return loop_; }
  int64_t micro_batches() const;
  // Returns all nodes of the step in order, with the nodes of the loop's body instead of the loop.
  const std::vector<Item>& items() const { return items_; }
  const Item* ItemOf(Value value) const;  // null for inputs

  // Returns the operand of the loop for an input of its body that is not scanned; any other value itself.
  Value Resolve(Value value) const;
  bool IsScanned(Value value) const { return scanned_.contains(value); }  // true for a scanned input of the body
  // Returns the scanned operand of the loop for such an input.
  Value Stack(Value input) const;
  // Returns the value of the body that one iteration contributes to a result of the loop.
  Value OfOneMicroBatch(Value result) const;
  // Returns the stage of a value; -1 if it has none. A result of the loop has one stage.
  int64_t StageOf(Value value) const;
  int64_t StageOf(const Result& result) const;  // the stage that computes it; -1: every stage
  // Returns the values with a stage that a stage needs to have or to compute `value`: `value` itself if it has a stage.
  std::vector<Value> Roots(Value value) const;
  // Returns the other stages that need a value with a stage, in order.
  std::vector<int64_t> Readers(Value value) const;

 private:
  StagePlan(const Graph& step, const StageOptions& options) : step_(step), options_(options) {}
  absl::Status FindLoop();
  void AddItems();
  void FindForward();
  absl::Status CutForward();
  void PlaceBefore(bool forward_alone);
  void PlaceBackward();
  void PlaceGradients();
  void PlaceAfter();
  void PlaceStates();
  void FindReaders();

  void AddRoots(Value value, std::vector<Value>& roots) const;
  void AddRead(Value root, int64_t stage) { reads_[root].insert(stage); }
  bool IsOn(Value root, int64_t stage) const;
  bool MayMove(const Item& item, int64_t stage) const;
  int64_t LastStageWithAll(const std::vector<Value>& roots, int64_t limit) const;
  bool IsState(Value value) const { return states_.contains(value); }
  bool IsOfLoop(Value value) const { return loop_ != nullptr && value.node == loop_; }
  Value Source(Value value) const;

  const Graph& step_;
  const StageOptions options_;
  const Node* loop_ = nullptr;
  std::unordered_map<Value, size_t, ValueHash> body_inputs_;  // the index of the loop's operand
  std::unordered_set<Value, ValueHash> scanned_, states_;
  std::vector<Item> items_;
  std::unordered_map<const Node*, size_t> item_of_;
  std::unordered_map<Value, int64_t, ValueHash> homes_;  // the stages of states
  // The stages that have a value once the forward part is computed.
  std::unordered_map<Value, std::unordered_set<int64_t>, ValueHash> reads_;
  std::unordered_map<Value, std::vector<int64_t>, ValueHash> readers_;
};

}  // namespace lockstep::passes
