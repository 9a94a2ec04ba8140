// Operators that run bodies. The number of runs must be known at import: each run of a body then becomes nodes, and
// gradients, placements and fusion need no special cases. A long Loop becomes a `scan` node.

#include <utility>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"
#include "frontends/onnx/unroll.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

absl::Status If(OnnxNode& n) {
  ASSIGN_OR_RETURN(const bool condition, KnownCondition(n, n.AnyInput(0), "input 0, the condition,"));
  const std::string taken = condition ? "then_branch" : "else_branch";
  n.Ignore(condition ? "else_branch" : "then_branch");
  ASSIGN_OR_RETURN(const onnx::GraphProto* body, n.Body(taken));
  ASSIGN_OR_RETURN(const std::vector<OnnxValue> outputs, n.ImportBody(*body, {}, "." + taken));
  if (static_cast<int>(outputs.size()) != n.num_outputs())
    return n.Error() << taken << " has " << outputs.size() << " outputs, expected " << n.num_outputs();
  for (int i = 0; i < n.num_outputs(); ++i) n.SetAnyOutput(i, outputs[static_cast<size_t>(i)]);
  return absl::OkStatus();
}

// Imports a loop whose condition stays true as a `scan` node and returns its outputs. Returns an error if the body
// cannot be that of a `scan`.
absl::StatusOr<std::vector<Value>> ImportLoopAsScan(OnnxNode& n, const onnx::GraphProto& body,
                                                    const std::vector<OnnxValue>& carried, int64_t trips) {
  using Kind = OnnxLoopInput::Kind;
  constexpr int64_t kMostNumbered = int64_t{1} << 31;
  if (trips > kMostNumbered) return n.Unsupported() << trips << " iterations";
  const Value goes_on = n.b().Constant(Tensor::Scalar(DType::kBool, 1));
  std::vector<OnnxLoopInput> inputs = {{Kind::kScanned, n.b().Iota({DType::kI64, Shape({trips})}, 0)},
                                       {Kind::kConstant, goes_on}};
  for (const OnnxValue& value : carried) {
    const Value* tensor = std::get_if<Value>(&value);
    if (tensor == nullptr) return n.Error() << "a carried value is " << KindOf(value) << ", expected a tensor";
    inputs.push_back({Kind::kCarried, *tensor});
  }
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(OnnxLoopBody loop, n.TraceLoop(body, inputs));
  if (!loop.is_true[0]) return n.Unsupported() << "its condition may become false";
  loop.outputs.erase(loop.outputs.begin());
  return ScanOf(n, std::move(loop), carried.size(), trips, /*reverse=*/false);
}

// The inputs of the body are the iteration number, a condition and the carried values. Its outputs are the next
// condition, the next carried values, and the values to stack.
absl::Status Loop(OnnxNode& n) {
  ASSIGN_OR_RETURN(const onnx::GraphProto* body, n.Body("body"));
  std::optional<int64_t> trips;
  if (n.has_input(0)) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> given, n.IntsInput(0));
    if (given.size() != 1) return n.Error() << "input 0 has " << given.size() << " elements, expected one number";
    trips = given[0];
  }
  bool goes_on = true;
  if (n.has_input(1)) {
    ASSIGN_OR_RETURN(goes_on, KnownCondition(n, n.AnyInput(1), "input 1, the condition,"));
  }
  std::vector<OnnxValue> carried;
  for (int i = 2; i < n.num_inputs(); ++i) carried.push_back(n.AnyInput(i));
  const size_t num_carried = carried.size(), num_outputs = static_cast<size_t>(body->output_size());
  if (num_outputs < 1 + num_carried || static_cast<size_t>(n.num_outputs()) > num_outputs - 1) {
    return n.Error() << "the body has " << num_outputs << " outputs, for a condition, " << num_carried
                     << " carried values and " << n.num_outputs() << " outputs of the node";
  }
  absl::Status not_a_loop;
  if (goes_on && trips && *trips > kMostUnrolledAtOnce) {
    const absl::StatusOr<std::vector<Value>> results = ImportLoopAsScan(n, *body, carried, *trips);
    if (results.ok()) {
      for (int i = 0; i < n.num_outputs(); ++i) n.SetOutput(i, (*results)[static_cast<size_t>(i)]);
      return absl::OkStatus();
    }
    not_a_loop = results.status();
  }
  std::vector<std::vector<OnnxValue>> stacked(num_outputs - 1 - num_carried);
  for (int64_t i = 0; goes_on && (!trips || i < *trips); ++i) {
    RETURN_IF_ERROR(CheckUnrolled(n, i + 1, "iterations", not_a_loop));
    std::vector<OnnxValue> inputs = {n.b().Constant(Tensor::Of<int64_t>(Shape(), {i})),
                                     n.b().Constant(Tensor::Scalar(DType::kBool, 1))};
    inputs.insert(inputs.end(), carried.begin(), carried.end());
    ASSIGN_OR_RETURN(const std::vector<OnnxValue> outputs,
                     n.ImportBody(*body, std::move(inputs), "[" + std::to_string(i) + "]"));
    ASSIGN_OR_RETURN(goes_on, KnownCondition(n, outputs[0], "the body's condition '" + body->output(0).name() + "'"));
    for (size_t j = 0; j < num_carried; ++j) carried[j] = outputs[1 + j];
    for (size_t j = 0; j < stacked.size(); ++j) stacked[j].push_back(outputs[1 + num_carried + j]);
  }
  for (int i = 0; i < n.num_outputs(); ++i) {
    const size_t at = static_cast<size_t>(i);
    if (at < num_carried) {
      n.SetAnyOutput(i, carried[at]);
    } else if (n.has_output(i)) {
      ASSIGN_OR_RETURN(const Value all, Stack(n, stacked[at - num_carried], 0, body->output(i + 1)));
      n.SetOutput(i, all);
    }
  }
  return absl::OkStatus();
}

// Runs the body on each element of the first sequence, with the elements of other sequences at the same position, and
// with inputs that are tensors unchanged.
absl::Status SequenceMap(OnnxNode& n) {
  ASSIGN_OR_RETURN(const onnx::GraphProto* body, n.Body("body"));
  ASSIGN_OR_RETURN(const OnnxSequence first, n.SequenceInput(0));
  if (body->output_size() != n.num_outputs())
    return n.Error() << "the body has " << body->output_size() << " outputs, expected " << n.num_outputs();
  std::vector<OnnxSequence> results(static_cast<size_t>(n.num_outputs()));
  for (size_t j = 0; j < results.size(); ++j) {
    const auto& info = body->output(static_cast<int>(j));
    const absl::StatusOr<DType> dtype = DTypeFromOnnx(info.type().tensor_type().elem_type());
    if (dtype.ok()) results[j].dtype = *dtype;
  }
  for (size_t at = 0; at < first.elements.size(); ++at) {
    std::vector<OnnxValue> inputs;
    for (int i = 0; i < n.num_inputs(); ++i) {
      OnnxValue input = n.AnyInput(i);
      if (const auto* sequence = std::get_if<OnnxSequence>(&input)) {
        if (sequence->elements.size() != first.elements.size()) {
          return n.Error() << "input " << i << " has " << sequence->elements.size() << " elements, expected "
                           << first.elements.size() << " as input 0 has";
        }
        input = OnnxValue(sequence->elements[at]);
      }
      inputs.push_back(std::move(input));
    }
    ASSIGN_OR_RETURN(const std::vector<OnnxValue> outputs,
                     n.ImportBody(*body, std::move(inputs), "[" + std::to_string(at) + "]"));
    for (size_t j = 0; j < results.size(); ++j) {
      const Value* element = std::get_if<Value>(&outputs[j]);
      if (element == nullptr)
        return n.Error() << "output " << j << " is " << KindOf(outputs[j]) << ", expected a tensor";
      if (at == 0) results[j].dtype = element->dtype();
      if (element->dtype() != results[j].dtype) return n.Error() << "output " << j << " would mix element types";
      results[j].elements.push_back(*element);
    }
  }
  for (int i = 0; i < n.num_outputs(); ++i) n.SetAnyOutput(i, std::move(results[static_cast<size_t>(i)]));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> ControlFlowOps() {
  return {
      {"If", 1, kNoEnd, 1, 1, If, /*takes_any_kind=*/true},
      {"Loop", 1, kNoEnd, 0, kAnyNumberSomeAbsent, Loop, /*takes_any_kind=*/true},
      {"SequenceMap", 17, kNoEnd, 1, kAnyNumber, SequenceMap, /*takes_any_kind=*/true},
  };
}

}  // namespace lockstep
