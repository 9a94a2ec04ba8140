// In which order the stages of a pipeline compute: one forward, one backward (PipeDream-flush: Narayanan et al.,
// "Memory-efficient pipeline-parallel DNN training", 2021). A micro-batch passes forward through all stages, and back.
// A stage first takes as many micro-batches as are needed for the last stage to have one, and then one back for each
// that it takes forward; so it holds the activations of at most as many micro-batches as there are stages from it on,
// where GPipe (Huang et al., 2019) holds those of all. Of 3 stages and 4 micro-batches:
//
//   stage 0   F0 F1 F2 B0 F3 B1 B2 B3
//   stage 1   F0 F1 B0 F2 B1 F3 B2 B3
//   stage 2   F0 B0 F1 B1 F2 B2 F3 B3
//
// Plain functions of numbers; any thread.

#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

namespace lockstep::passes {

// One pass of one micro-batch through one stage.
struct Turn {
  bool is_backward = false;
  int64_t micro_batch = 0;
  bool operator==(const Turn&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Turn& turn);  // "F0", "B3"

// Those of `stage`, in its order. Requires 0 <= stage < stages and micro_batches >= 1.
std::vector<Turn> TurnsOfStage(int64_t stage, int64_t stages, int64_t micro_batches);

struct TurnOfStage {
  int64_t stage = 0;
  Turn turn;
  int64_t time = 0;  // if each turn took one unit, and nothing the way between stages
};

// Those of all stages in one order, that of time and then of stages: each stage's own order is kept, and each turn
// comes after those that it waits for, which are that of the stage before (forward) or behind it (backward), and its
// own forward turn. That there is such an order says that no stage waits for ever.
std::vector<TurnOfStage> TurnsOfAllStages(int64_t stages, int64_t micro_batches);

}  // namespace lockstep::passes
