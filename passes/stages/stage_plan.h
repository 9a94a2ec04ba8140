// Which stage of a pipeline computes what, of a training step: for CutIntoStages alone (cut_into_stages.h). Borrows the
// step, which must not change meanwhile.
//
// The forward part of a micro-batch is cut, in its order, where little is alive between two halves, so that the stages
// cost about the same (balanced_cut.h). All else goes where what it needs is: backward nodes where their forward values
// are, optimizers and states with their weights. What is so cheap that it is made where it is read, such as a constant,
// a broadcast or a slice of the batch, has no stage.

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
  // What a byte between two stages costs, in operations on numbers, beside those of kernels.
  double operations_per_byte = 10;
  // The axes of the result in the order that they are to have; empty: those of the step, then that of the stages.
  Mesh mesh = {};
};

class StagePlan {
 public:
  // Where a node stands: in the loop over micro-batches, or around it. Of a step without a loop all that leads to its
  // loss is a micro-batch, and the rest comes after it.
  enum class Part : uint8_t { kBefore, kMicroBatch, kAfter };
  enum class Where : uint8_t {
    kStage,         // on one stage
    kEverywhere,    // follows from data, settings and constants alone, and is cheap: on each stage that uses it
    kWhereItIsRead  // cheap, of what has a stage: again on each stage that uses it
  };
  struct Item {
    const Node* node = nullptr;
    Part part = Part::kMicroBatch;
    Where where = Where::kStage;
    bool is_forward = false;
    bool is_of_each = false;  // differs between micro-batches
    int64_t stage = -1;       // of those that have one
  };

  // Errors: fewer nodes to cut than stages, or a step whose micro-batches need two passes over the model.
  static absl::StatusOr<StagePlan> Make(const Graph& step, const StageOptions& options);

  // The loop over micro-batches; null if there is none.
  const Node* loop() const { return loop_; }
  int64_t micro_batches() const;
  // All nodes of the step but the loop, with those of the loop's body in its place, in order.
  const std::vector<Item>& items() const { return items_; }
  const Item* ItemOf(Value value) const;  // null for inputs

  // What the loop's body gets whole is what it is outside; any other value is itself.
  Value Resolve(Value value) const;
  bool IsScanned(Value value) const { return scanned_.contains(value); }  // of an input of the body
  // Of such an input, what is scanned.
  Value Stack(Value input) const;
  // What the body makes, of a result of the loop.
  Value OfOneMicroBatch(Value result) const;
  // Where the value is: -1 of what has no stage. What the loop makes of all micro-batches is on one.
  int64_t StageOf(Value value) const;
  int64_t StageOf(const Result& result) const;  // where it is computed; -1: on every stage
  // The values with a stage that a stage must have to make `value` or to read it; itself, if it has one.
  std::vector<Value> Roots(Value value) const;
  // The other stages that need a value which has a stage, in order.
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
  int64_t StageNear(const std::vector<Value>& roots, int64_t limit) const;
  bool IsState(Value value) const { return states_.contains(value); }
  bool IsOfLoop(Value value) const { return loop_ != nullptr && value.node == loop_; }
  Value Source(Value value) const;

  const Graph& step_;
  const StageOptions options_;
  const Node* loop_ = nullptr;
  std::unordered_map<Value, size_t, ValueHash> body_inputs_;  // to operands of the loop
  std::unordered_set<Value, ValueHash> scanned_, states_;
  std::vector<Item> items_;
  std::unordered_map<const Node*, size_t> item_of_;
  std::unordered_map<Value, int64_t, ValueHash> homes_;  // of states
  // Stages that a value is on when the forward part has been computed.
  std::unordered_map<Value, std::unordered_set<int64_t>, ValueHash> reads_;
  std::unordered_map<Value, std::vector<int64_t>, ValueHash> readers_;
};

}  // namespace lockstep::passes
