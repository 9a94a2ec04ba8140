// Pipeline parallelism: cuts a training step into stages, each of which is for one rank of a mesh axis. What a stage
// needs of another one is moved, by a collective_permute between the two; micro-batches follow each other through the
// stages, one forward, one backward (turns.h). Any thread that owns the graph.
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
// So the result is a placed program, in which the verifier holds each value to be where it is needed, and the N-rank
// interpreter computes with what each rank has. It is the step of one rank, term by term and sum by sum, in the same
// order for any number of stages. Each stage computes in its order what is `at` it, and of what is replicated what it
// needs: where transfers stand in the list, that holds for all stages at once, so none waits for ever.
//
//  * The loop is what AccumulateGradients makes; without one there is one micro-batch.
//  * What a stage gives to another one leaves as soon as the turn in which it was computed is over.
//  * Data inputs, labels too, are given to the stages that read them. A state has one stage; if another one reads it,
//    as a table that is used twice, it is moved once a step.
//  * Results that are no states are on all stages.
//  * A transfer's source says what moves, and the name of what ranks along other axes add up whose gradient it is, in
//    names of the model (names.h): messages say it of a rank that waits.

#pragma once

#include <cstdint>
#include <string_view>

#include "core/graph.h"
#include "core/status.h"
#include "passes/pass.h"
#include "passes/stages/stage_plan.h"

namespace lockstep::passes {

// Of a one-rank program, or one that is placed over other axes: that of stages then comes last in its mesh, unless
// options.mesh says otherwise. Errors: those of StagePlan, or a graph whose mesh has stages already.
absl::StatusOr<Graph> CutGraphIntoStages(const Graph& step, const StageOptions& options);

// The same as a pass; of one stage it changes nothing.
Pass CutIntoStages(StageOptions options);

}  // namespace lockstep::passes
