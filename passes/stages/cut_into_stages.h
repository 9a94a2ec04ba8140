// Pipeline parallelism: cuts a training step into stages, one for each rank of a mesh axis. A value that another stage
// needs is moved by a collective_permute between the two stages. Micro-batches pass through the stages in the order
// "one forward, one backward" (turns.h). Any thread that owns the graph.
//
//   graph @step(%x: f32[8,3] split(0), %y: …, state %w: f32[3,5], state %v: f32[5,2]) -> (…) {
//     …                                    // %xs and %ys of %x and %y, cut
//     %dw, %dv, %loss = scan %xs, %ys, %w, %v {length=4, one_at_a_time=true, body=
//       graph @micro_batch(…) -> (…) {
//         %h = matmul %x, %w
//         …                                // %loss and %dz of matmul %h, %v
//         %dh = matmul %dz, %v {transpose_b=true}
//         %dv = matmul %h, %dz {transpose_a=true}
//         %dw = matmul %x, %dh {transpose_a=true}
//         return %dw, %dv, %loss
//       }} …
//     %w.next = sgd %w, %dw                %v.next = sgd %v, %dv
//     return %loss, %w.next, %v.next
//   }
// becomes
//   mesh {stage=2}
//   graph @step(%x: …, %y: …, state %w: f32[3,5] at(0, stage), state %v: f32[5,2] at(1, stage)) -> (…) {
//     …                                                                              // %xs and %ys, on both
//     %h = matmul %x0, %w : f32[2,5] at(0, stage)                                    // F0 of stage 0
//     %h.there = collective_permute %h {axis=stage, sources=[0], targets=[1]} : f32[2,5] at(1, stage)
//     …                                                                              // F0 of stage 1, F1 of stage 0
//     %dh = matmul %dz, %v {transpose_b=true} : f32[2,5] at(1, stage)                // B0 of stage 1
//     %dv = matmul %h.there, %dz {transpose_a=true} : f32[5,2] at(1, stage)
//     …                                                                              // four terms, added up
//     %w.next = sgd %w, %dw : f32[3,5] at(0, stage)    %v.next = sgd %v, %dv : f32[5,2] at(1, stage)
//     %loss.all = collective_broadcast %loss {axis=stage, root=1} : f32[]
//     return %loss.all, %w.next, %v.next
//   }
//
// The result is a placed program: the verifier checks that each value is on the stage that needs it, and the N-rank
// interpreter runs it. It computes the same terms and sums as the step of one rank, in the same order for any number of
// stages. Each stage runs, in the order of the list, the nodes that are `at` it, and the replicated nodes that it
// needs. Transfers have one order in the list for all stages, so no stage waits forever.
//
//  * The loop is the one that AccumulateGradients makes; without a loop there is one micro-batch.
//  * A value for another stage is sent as soon as the turn that computes it is over.
//  * Data inputs, including labels, are given to the stages that read them. A state has one stage. If another stage
//    reads it, such as a table that is used twice, it is moved once a step.
//  * Results other than states are on all stages.
//  * The source of a transfer says what moves. The name of a sum over another axis says whose gradient it is. Both use
//    names of the model (names.h), which messages about a waiting rank show.

#pragma once

#include <cstdint>
#include <string_view>

#include "core/graph.h"
#include "core/status.h"
#include "passes/pass.h"
#include "passes/stages/stage_plan.h"

namespace lockstep::passes {

// Cuts a one-rank program, or one that is placed over other axes. The axis of stages comes last in the mesh, unless
// options.mesh gives another order. Returns the errors of StagePlan, or an error if the graph's mesh has stages
// already.
absl::StatusOr<Graph> CutGraphIntoStages(const Graph& step, const StageOptions& options);

// Returns CutGraphIntoStages as a pass. With one stage it changes nothing.
Pass CutIntoStages(StageOptions options);

}  // namespace lockstep::passes
