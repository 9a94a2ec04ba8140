// Scan: runs a body on the elements of its inputs along one axis, and carries values from run to run. Opset 8 has a
// batch dimension, and scans each entry of the batch. From opset 9 on each input and output has its own axis.

#include <algorithm>
#include <utility>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/unroll.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// The attributes of a Scan. Axes and directions have one entry for each scanned input, or each stacked output;
// direction 1 is backwards.
struct OnnxScan {
  const onnx::GraphProto* body = nullptr;
  int64_t num_carried = 0, num_scanned = 0, num_stacked = 0;
  Ints input_axes, input_directions, output_axes, output_directions;
};

absl::StatusOr<Ints> PerValue(OnnxNode& n, std::string_view name, int64_t count, bool is_direction) {
  Ints list = n.Ints(name, Ints(At(count), 0));
  RETURN_IF_ERROR(n.b().status());
  if (static_cast<int64_t>(list.size()) != count)
    return n.Error() << "attribute " << name << " is " << ListToString(list) << ", expected " << count << " entries";
  for (int64_t entry : list) {
    if (is_direction && entry != 0 && entry != 1)
      return n.Error() << "attribute " << name << " is " << ListToString(list) << ", expected 0 (forward) or 1";
  }
  return list;
}

// `first` is the first of the node's inputs that the body sees.
absl::StatusOr<OnnxScan> ReadScan(OnnxNode& n, int first) {
  OnnxScan form;
  ASSIGN_OR_RETURN(form.body, n.Body("body"));
  const int64_t num_inputs = n.num_inputs() - first;
  form.num_scanned = n.Int("num_scan_inputs", 0);
  RETURN_IF_ERROR(n.b().status());
  if (form.num_scanned < 1 || form.num_scanned > num_inputs) {
    return n.Error() << "attribute num_scan_inputs is " << form.num_scanned << ", expected 1 to " << num_inputs;
  }
  form.num_carried = num_inputs - form.num_scanned;
  form.num_stacked = form.body->output_size() - form.num_carried;
  if (form.num_stacked < 0 || n.num_outputs() > form.body->output_size()) {
    return n.Error() << "the body has " << form.body->output_size() << " outputs, for " << form.num_carried
                     << " carried values and " << n.num_outputs() << " outputs of the node";
  }
  for (int i = first; i < n.num_inputs(); ++i) {
    if (!n.has_input(i)) return n.Error() << "input " << i << " is missing";
  }
  return form;
}

// x with dimension `from` as dimension `to`.
Value MoveDim(Builder& b, Value x, int64_t from, int64_t to) {
  if (!x || from == to) return x;
  Ints permutation;
  for (int64_t d = 0; d < x.shape().rank(); ++d) {
    if (d != from) permutation.push_back(d);
  }
  permutation.insert(permutation.begin() + to, from);
  return b.Transpose(x, permutation);
}

// Imports the Scan as a `scan` node and returns its results. Returns an error if the body cannot be that of a `scan`.
absl::StatusOr<std::vector<Value>> ImportAsScanNode(OnnxNode& n, const OnnxScan& form,
                                                    const std::vector<OnnxValue>& carried,
                                                    const std::vector<Value>& scanned, const Ints& axes,
                                                    int64_t length) {
  using Kind = OnnxLoopInput::Kind;
  Builder& b = n.b();
  const bool reverse = std::all_of(form.input_directions.begin(), form.input_directions.end(),
                                   [](int64_t direction) { return direction == 1; });
  const auto turned = [&](Value x, int64_t direction) { return (direction == 1) == reverse ? x : b.Reverse(x, {0}); };
  std::vector<OnnxLoopInput> inputs;
  for (const OnnxValue& value : carried) {
    const Value* tensor = std::get_if<Value>(&value);
    if (tensor == nullptr) return n.Error() << "a carried value is " << KindOf(value) << ", expected a tensor";
    inputs.push_back({Kind::kCarried, *tensor});
  }
  for (size_t i = 0; i < scanned.size(); ++i)
    inputs.push_back({Kind::kScanned, turned(MoveDim(b, scanned[i], axes[i], 0), form.input_directions[i])});
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(OnnxLoopBody loop, n.TraceLoop(*form.body, inputs));
  if (loop.outputs.size() != At(form.num_carried + form.num_stacked))
    return n.Error() << "the body has a different number of outputs";
  ASSIGN_OR_RETURN(std::vector<Value> results, ScanOf(n, std::move(loop), carried.size(), length, reverse));
  for (size_t j = 0; j < At(form.num_stacked); ++j) {
    Value& result = results[carried.size() + j];
    ASSIGN_OR_RETURN(const int64_t axis, n.Axis(form.output_axes[j], result.shape().rank()));
    result = MoveDim(b, turned(result, form.output_directions[j]), 0, axis);
  }
  RETURN_IF_ERROR(b.status());
  return results;
}

// Runs one scan of `scanned` along `axes`, with `carried` as the initial values. Returns the last carried values, then
// the stacked outputs. `place` is "", or says which entry of the batch it is.
absl::StatusOr<std::vector<Value>> RunScan(OnnxNode& n, const OnnxScan& form, std::vector<OnnxValue> carried,
                                           const std::vector<Value>& scanned, const Ints& axes,
                                           const std::string& place) {
  RETURN_IF_ERROR(n.b().status());
  const int64_t length = scanned[0].shape()[axes[0]];
  for (size_t i = 0; i < scanned.size(); ++i) {
    if (scanned[i].shape()[axes[i]] == length) continue;
    return n.Error() << "scans " << length << " elements of one input, and " << scanned[i].shape()[axes[i]]
                     << " of another";
  }
  absl::Status not_a_loop;
  if (length > kMostUnrolledAtOnce) {
    absl::StatusOr<std::vector<Value>> results = ImportAsScanNode(n, form, carried, scanned, axes, length);
    if (results.ok()) return results;
    not_a_loop = results.status();
  }
  RETURN_IF_ERROR(CheckUnrolled(n, length, "iterations", not_a_loop));
  std::vector<std::vector<OnnxValue>> stacked(At(form.num_stacked));
  for (int64_t step = 0; step < length; ++step) {
    std::vector<OnnxValue> inputs = carried;
    for (size_t i = 0; i < scanned.size(); ++i) {
      const int64_t at = form.input_directions[i] == 1 ? length - 1 - step : step;
      inputs.emplace_back(ElementAlong(n.b(), scanned[i], axes[i], at));
    }
    RETURN_IF_ERROR(n.b().status());
    ASSIGN_OR_RETURN(const std::vector<OnnxValue> outputs,
                     n.ImportBody(*form.body, std::move(inputs), place + "[" + std::to_string(step) + "]"));
    for (size_t j = 0; j < carried.size(); ++j) carried[j] = outputs[j];
    for (size_t j = 0; j < stacked.size(); ++j) {
      const bool backwards = form.output_directions[j] == 1;
      stacked[j].insert(backwards ? stacked[j].begin() : stacked[j].end(), outputs[carried.size() + j]);
    }
  }
  std::vector<Value> results;
  for (const OnnxValue& value : carried) {
    const Value* tensor = std::get_if<Value>(&value);
    if (tensor == nullptr) return n.Error() << "a carried value is " << KindOf(value) << ", expected a tensor";
    results.push_back(*tensor);
  }
  for (size_t j = 0; j < stacked.size(); ++j) {
    const onnx::ValueInfoProto& info = form.body->output(static_cast<int>(carried.size() + j));
    ASSIGN_OR_RETURN(const Value all, Stack(n, stacked[j], form.output_axes[j], info));
    results.push_back(all);
  }
  return results;
}

absl::Status Scan(OnnxNode& n) {
  ASSIGN_OR_RETURN(OnnxScan form, ReadScan(n, 0));
  ASSIGN_OR_RETURN(form.input_axes, PerValue(n, "scan_input_axes", form.num_scanned, false));
  ASSIGN_OR_RETURN(form.input_directions, PerValue(n, "scan_input_directions", form.num_scanned, true));
  ASSIGN_OR_RETURN(form.output_axes, PerValue(n, "scan_output_axes", form.num_stacked, false));
  ASSIGN_OR_RETURN(form.output_directions, PerValue(n, "scan_output_directions", form.num_stacked, true));
  const std::vector<Value> inputs = n.inputs();
  RETURN_IF_ERROR(n.b().status());
  const std::vector<OnnxValue> carried(inputs.begin(), inputs.begin() + form.num_carried);
  const std::vector<Value> scanned(inputs.begin() + form.num_carried, inputs.end());
  for (size_t i = 0; i < scanned.size(); ++i) {
    ASSIGN_OR_RETURN(form.input_axes[i], n.Axis(form.input_axes[i], scanned[i].shape().rank()));
  }
  ASSIGN_OR_RETURN(const std::vector<Value> results, RunScan(n, form, carried, scanned, form.input_axes, ""));
  for (int i = 0; i < n.num_outputs(); ++i) n.SetOutput(i, results[At(i)]);
  return absl::OkStatus();
}

// Input 0, if present, has the lengths of the sequences of the batch. Dimension 0 of the other inputs and of the
// outputs is the batch; dimension 1 of the scanned inputs is the sequence.
absl::Status BatchedScan(OnnxNode& n) {
  ASSIGN_OR_RETURN(OnnxScan form, ReadScan(n, 1));
  ASSIGN_OR_RETURN(form.input_directions, PerValue(n, "directions", form.num_scanned, true));
  form.output_axes = form.output_directions = Ints(At(form.num_stacked), 0);
  std::vector<Value> inputs;
  for (int i = 1; i < n.num_inputs(); ++i) inputs.push_back(n.input(i));
  RETURN_IF_ERROR(n.b().status());
  const int64_t num_carried = form.num_carried, batch = inputs.back().shape().rank() > 0 ? inputs.back().shape()[0] : 0;
  for (int64_t i = 0; i < num_carried + form.num_scanned; ++i) {
    const int64_t rank = i < num_carried ? 1 : 2;
    RETURN_IF_ERROR(n.RequireRank(static_cast<int>(i) + 1, rank));
    if (inputs[At(i)].shape()[0] != batch || batch == 0)
      return n.Error() << "input " << i + 1 << " is " << inputs[At(i)].type() << ", expected a batch of " << batch;
  }
  if (n.has_input(0)) {
    ASSIGN_OR_RETURN(const Ints lengths, n.IntsInput(0));
    for (int64_t length : lengths) {
      if (length != inputs.back().shape()[1])
        return n.Unsupported() << "sequences of lengths " << ListToString(lengths) << " in input 0; expected all to be "
                               << inputs.back().shape()[1];
    }
  }
  RETURN_IF_ERROR(CheckUnrolled(n, batch * inputs.back().shape()[1], "iterations, over the batch and the sequence,"));
  std::vector<std::vector<OnnxValue>> results(At(form.body->output_size()));
  for (int64_t at = 0; at < batch; ++at) {
    std::vector<Value> elements;
    for (Value input : inputs) elements.push_back(ElementAlong(n.b(), input, 0, at));
    RETURN_IF_ERROR(n.b().status());
    const std::vector<OnnxValue> carried(elements.begin(), elements.begin() + num_carried);
    const std::vector<Value> scanned(elements.begin() + num_carried, elements.end());
    const std::string place = "[" + std::to_string(at) + "]";
    ASSIGN_OR_RETURN(const std::vector<Value> outputs,
                     RunScan(n, form, carried, scanned, Ints(scanned.size(), 0), place));
    for (size_t j = 0; j < outputs.size(); ++j) results[j].push_back(outputs[j]);
  }
  for (int i = 0; i < n.num_outputs(); ++i) {
    ASSIGN_OR_RETURN(const Value all, Stack(n, results[At(i)], 0, form.body->output(i)));
    n.SetOutput(i, all);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> ScanOps() {
  return {
      {"Scan", 8, 8, 0, kAnyNumberSomeAbsent, BatchedScan},
      {"Scan", 9, kNoEnd, 1, kAnyNumber, Scan},
  };
}

}  // namespace lockstep
