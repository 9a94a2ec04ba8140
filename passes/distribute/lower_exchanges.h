// Puts the body of each `exchange` (core/ops/exchange.cc) in its place: the program by which the ranks of an axis make
// the sum of a gradient, or what stands for it. `train-step` makes the exchanges, and whoever compiles for a number of
// ranks their bodies (in Python, lockstep.exchange).
//
// For n ranks and a body that sends only the signs, of the trained state %w, here of 3 x 4 elements,
//
//   %g = exchange %grad/w {by="signs()", state=w, body=mesh {data=n} graph @signs(
//            %g: f32[3,4] partial(sum), state %error: f32[n,3,4] split(0)) -> (sum: f32[3,4], %error: …) {…}} :
//            f32[3,4]
// becomes, with a state that has a part for each rank,
//   state %w/signs/error: f32[n,3,4] split(0)
//   %0 = parts %grad/w … : f32[n,3,4] split(0)     the nodes of the body
//   …
//   %g = …                                         its result
//   %w/signs/error.next = …                        the next value of its state
//
// A state of a body becomes a state of the program, `<trained state>/<name of the body>/<state>`. If a step changes no
// weights because its gradients are not finite (loss_scaling.h), it does not change these states either. Along an axis
// of one rank an exchange is its operand, and without a body it is an all_reduce. A body for another number of ranks is
// an error. own_weights.h describes the same for exchanges of weights, `exchange_weights`.

#pragma once

#include "passes/pass.h"

namespace lockstep::passes {

Pass LowerExchanges();

}  // namespace lockstep::passes
