// The strategy of parameter servers (decisions/0047): gradients go to servers, which update the variables and keep what
// the optimizer keeps, and the new variables come back. Each optimizer node, with the states and the settings that it
// takes, becomes a graph of its own, which the servers compile.
//
//   %step.next = add %optimizer/step, %one : i64[]
//   %w.next, %m.next, %v.next = adam %w, %w/adam_m, %w/adam_v, %step.next, %g {learning_rate=%rate} : …
//
// becomes
//
//   %g.pushed = push %g {axis=data, key=w} : f32[784,10]
//   %w.next, %m.next, %v.next, %step.next = pull %g.pushed, %w, %w/adam_m, %w/adam_v, %optimizer/step, %rate {key=w,
//     update=graph @update(%gradient: f32[784,10], state %value: f32[784,10], state %w/adam_m: f32[784,10],
//                          state %w/adam_v: f32[784,10], state %optimizer/step: i64[], setting %optimizer/…: f64[] = …)
//         -> (%value: …, %w/adam_m: …, %w/adam_v: …, %optimizer/step: …) { … }} : …
//
// It runs before `distribute`, where gradients are not summed yet: a push adds up what each rank has of the sum, so
// that it stands where the all_reduce would. States that a pull takes beside its variable are the servers': nothing
// else may read them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "passes/pass.h"

namespace lockstep::passes {

struct ServerOptions {
  std::string axis = "data";  // the mesh axis whose ranks are the workers
  // The attributes of `push`.
  bool synchronous = true;
  int64_t max_staleness = -1;
  int64_t bigarray_bound = 1'000'000;

  bool operator==(const ServerOptions&) const = default;
};

// An error, of a graph: the next value of a state is not what its optimizer gives and that alone, or an update depends
// on what no server has. A graph without an optimizer stays as it is, and any without options.
Pass MoveUpdatesToServers(std::optional<ServerOptions> options);

}  // namespace lockstep::passes
