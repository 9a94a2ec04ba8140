// Functions shared by the operators that run a body a number of times that is known at import: If, Loop, Scan,
// SequenceMap. Internal to the frontend; each call belongs to one import.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontends/onnx/onnx_node.h"

namespace lockstep {

// A Loop or a Scan of more iterations than this becomes a `scan` node if its body allows it. A shorter one is unrolled:
// its iterations may then differ, and fuse with the nodes around them.
inline constexpr int64_t kMostUnrolledAtOnce = 16;

// The value of a condition of one element that is known at import, else an error. `what` names it in the message:
// "input 0".
absl::StatusOr<bool> KnownCondition(OnnxNode& n, const OnnxValue& condition, std::string_view what);

// Returns an error that names the limit if a loop would have more iterations, or a sequence more elements. `not_a_loop`
// says why it cannot be a `scan` node, if that was tried.
absl::Status CheckUnrolled(const OnnxNode& n, int64_t count, std::string_view of_what,
                           const absl::Status& not_a_loop = absl::OkStatus());

// Adds a `scan` node of these parts, which runs `body` at run time. Returns its results.
absl::StatusOr<std::vector<Value>> AddScan(OnnxNode& n, const Graph& body, const ScanParts& parts, int64_t length,
                                           bool reverse);

// Adds the `scan` node of a traced loop. The outputs of its body are the next carried values, then the stacked values.
// Returns the node's results; an error if a carried value would change its type.
absl::StatusOr<std::vector<Value>> ScanOf(OnnxNode& n, OnnxLoopBody loop, size_t num_carried, int64_t length,
                                          bool reverse);

// x at position `at` of dimension `axis`, without that dimension.
Value ElementAlong(Builder& b, Value x, int64_t axis, int64_t at);

// Stacks tensors of one type along a new dimension, at `axis` of the result; a negative axis counts from the end. If
// `parts` is empty, `info` must have the type that they would have.
absl::StatusOr<Value> Stack(OnnxNode& n, const std::vector<OnnxValue>& parts, int64_t axis,
                            const onnx::ValueInfoProto& info);

}  // namespace lockstep
