// The order in which the stages of a pipeline compute: one forward, one backward (1F1B; PipeDream-flush: Narayanan et
// al., "Memory-efficient pipeline-parallel DNN training", 2021). A micro-batch passes forward through all stages, and
// back. A stage first runs as many forward turns as it takes for the last stage to get a micro-batch. Then it
// alternates one forward and one backward turn. So it holds the activations of at most as many micro-batches as there
// are stages from it on, while GPipe (Huang et al., 2019) holds those of all. With 3 stages and 4 micro-batches:
//
//   stage 0   F0 F1 F2 B0 F3 B1 B2 B3
//   stage 1   F0 F1 B0 F2 B1 F3 B2 B3
//   stage 2   F0 B0 F1 B1 F2 B2 F3 B3
//
// Pure functions of numbers; any thread.

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

// Returns the turns of `stage`, in its order. Requires 0 <= stage < stages and micro_batches >= 1.
std::vector<Turn> TurnsOfStage(int64_t stage, int64_t stages, int64_t micro_batches);

struct TurnOfStage {
  int64_t stage = 0;
  Turn turn;
  int64_t time = 0;  // the start, if each turn takes one unit and transfers take none
};

// Returns the turns of all stages in one order, by time and then by stage. The order of each stage is kept. Each turn
// comes after the turns that it waits for: the turn of the previous stage (forward), or of the next stage and its own
// forward turn (backward). The existence of this order proves that no stage waits forever.
std::vector<TurnOfStage> TurnsOfAllStages(int64_t stages, int64_t micro_batches);

}  // namespace lockstep::passes
