// The strategy of parameter servers (decisions/0047): workers push gradients to servers and pull the new variables. The
// servers update the variables and keep the optimizer's states. Each optimizer node becomes a graph of its own, with
// the states and the settings that it takes, and the servers compile that graph.
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
// The pass runs before `distribute`, when gradients are not summed yet: a push takes each rank's term of the sum, so it
// replaces the all_reduce. The states that a pull takes besides its variable belong to the servers: nothing else may
// read them.

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

// Returns an error if the next value of an updated state is not the result of its optimizer, or if an update depends on
// a value that servers do not have. Does nothing without options, or for a graph without an optimizer.
Pass MoveUpdatesToServers(std::optional<ServerOptions> options);

}  // namespace lockstep::passes
