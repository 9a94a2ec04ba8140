// Makes a program of one rank smaller before it is run in exact arithmetic: the same nodes, but for those of which no
// result is used, with smaller dimensions.
//
// Which dimensions belong together follows from the inference of the ops' types: dimensions are changed one at a time,
// and together where inference refuses that. So an op needs no rule here, but for those whose attributes hold
// positions. Where sizes cannot be changed, they stay.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/graph.h"

namespace lockstep::verify {

struct Shrunk {
  Graph program;
  // What was changed, such as "256 -> 8 (dim 0 of x, label)": one text for each pair of sizes of an input's dimension.
  // Empty if all inputs are as they were; then no more than values inside of the program became smaller.
  std::vector<std::string> changes;
};

// Returns `program`, which has no mesh, with dimensions as small as its structure allows. A new size is at least 2 and
// has the same greatest common divisor with `ranks` as the old one, so that what can be split along axes of a mesh
// whose sizes divide `ranks`, and what cannot, stay the same. Different sizes stay different where they can be chosen,
// that is, follow from no others, and there are enough small ones. Constants keep their first elements along each
// dimension.
// A program may compute positions from sizes in constants, which stay. Then it fails, or computes something simpler: of
// 4 positions, all are below 256, so what a program of 512 positions does with the others is lost. With
// `keeps_written`, sizes that are among the integers in constants stay, too.
Shrunk ShrinkDimensions(const Graph& program, int64_t ranks, bool keeps_written = false);

// The number of operations and elements of one run of `program`, in which a scan counts as all of its iterations.
double CostOfRun(const Graph& program);

}  // namespace lockstep::verify
