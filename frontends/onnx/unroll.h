// What the operators share that run a body a number of times that is known when importing: If, Loop, Scan, SequenceMap.
// Internal to the frontend; each call belongs to one import.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

// A Loop or a Scan of more iterations than this runs as a `scan` node, if its body can. Shorter ones, whose iterations
// may then differ, and fuse with what is around them, become their nodes.
inline constexpr int64_t kMostUnrolledAtOnce = 16;

// A condition of one element that is known before the program runs, else an error that says so. `what` is it: "input
// 0".
absl::StatusOr<bool> KnownCondition(OnnxNode& n, const OnnxValue& condition, std::string_view what);

// An error that names the limit, where a loop would have more iterations, or a sequence more elements.
// `not_a_loop` says why it does not run as a loop, if that has been tried.
absl::Status CheckUnrolled(const OnnxNode& n, int64_t count, std::string_view of_what,
                           const absl::Status& not_a_loop = absl::OkStatus());

// The results of a `scan` node of these parts, which runs `body` when the program runs.
absl::StatusOr<std::vector<Value>> AddScan(OnnxNode& n, const Graph& body, const ScanParts& parts, int64_t length,
                                           bool reverse);

// The `scan` node of a traced loop, whose body's outputs are the next carried values, then what is stacked: its
// results. An error if a carried value would change its type.
absl::StatusOr<std::vector<Value>> ScanOf(OnnxNode& n, OnnxLoopBody loop, size_t num_carried, int64_t length,
                                          bool reverse);

// x at position `at` of dimension `axis`, without that dimension.
Value ElementAlong(Builder& b, Value x, int64_t axis, int64_t at);

// Tensors of one type with a new dimension, at `axis` of the result; an axis below 0 counts from the end. If there are
// none, `info` has to say what they would be.
absl::StatusOr<Value> Stack(OnnxNode& n, const std::vector<OnnxValue>& parts, int64_t axis,
                            const onnx::ValueInfoProto& info);

}  // namespace lockstep
