// What a collective is called in messages, and in what two ranks' calls differ. Pure functions; any thread.

#pragma once

#include <string>

#include "runtime/comm/control_block.h"

namespace lockstep {

// "all_reduce sum f32[10] `bucket 0`".
std::string Describe(const OpDescription& description, const std::string& label);

// What the first field means in which the evidence of two ranks, of these numbers, differs; "" if none does.
std::string DifferenceOf(int rank_a, const Communicator::Evidence& a, int rank_b, const Communicator::Evidence& b);

}  // namespace lockstep
