// Sequences and optionals. They are not values of a graph: a sequence is a list that the importer keeps, so positions
// in it must be known at import. An optional is its content, or nothing.

#include <algorithm>
#include <utility>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"
#include "frontends/onnx/unroll.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Input i as a position in [0, limit), where negative ones count back from `length`; `otherwise` if it is absent.
absl::StatusOr<size_t> Position(OnnxNode& n, int i, int64_t length, int64_t limit, int64_t otherwise) {
  int64_t at = otherwise;
  if (n.has_input(i)) {
    ASSIGN_OR_RETURN(const Ints given, n.IntsInput(i));
    if (given.size() != 1) return n.Error() << "input " << i << " has " << given.size() << " elements, expected one";
    at = given[0];
  }
  if (at < -length || at >= limit)
    return n.Error() << "position " << at << " is outside a sequence of " << length << " elements";
  return static_cast<size_t>(at < 0 ? at + length : at);
}

absl::Status SequenceConstruct(OnnxNode& n) {
  const std::vector<Value> xs = n.inputs();
  RETURN_IF_ERROR(n.b().status());
  RETURN_IF_ERROR(CheckUnrolled(n, n.num_inputs(), "elements"));
  for (Value x : xs) {
    if (x.dtype() != xs[0].dtype())
      return n.Error() << "elements " << xs[0].type() << " and " << x.type() << " differ in their element type";
  }
  n.SetAnyOutput(0, OnnxSequence{xs[0].dtype(), xs});
  return absl::OkStatus();
}

absl::Status SequenceEmpty(OnnxNode& n) {
  OnnxSequence empty;
  if (n.has_attr("dtype")) {
    ASSIGN_OR_RETURN(empty.dtype, DTypeFromOnnx(static_cast<int>(n.Int("dtype", 0))));
  }
  n.SetAnyOutput(0, std::move(empty));
  return absl::OkStatus();
}

absl::Status SequenceInsert(OnnxNode& n) {
  ASSIGN_OR_RETURN(OnnxSequence sequence, n.SequenceInput(0));
  const Value x = n.input(1);
  RETURN_IF_ERROR(n.b().status());
  if (x.dtype() != sequence.dtype) {
    return n.Error() << "input 1 is " << x.type() << ", the elements of the sequence are of type "
                     << DTypeName(sequence.dtype);
  }
  const int64_t length = static_cast<int64_t>(sequence.elements.size());
  RETURN_IF_ERROR(CheckUnrolled(n, length + 1, "elements"));
  ASSIGN_OR_RETURN(const size_t at, Position(n, 2, length, length + 1, length));
  sequence.elements.insert(sequence.elements.begin() + static_cast<std::ptrdiff_t>(at), x);
  n.SetAnyOutput(0, std::move(sequence));
  return absl::OkStatus();
}

absl::Status SequenceErase(OnnxNode& n) {
  ASSIGN_OR_RETURN(OnnxSequence sequence, n.SequenceInput(0));
  const int64_t length = static_cast<int64_t>(sequence.elements.size());
  ASSIGN_OR_RETURN(const size_t at, Position(n, 1, length, length, length - 1));
  sequence.elements.erase(sequence.elements.begin() + static_cast<std::ptrdiff_t>(at));
  n.SetAnyOutput(0, std::move(sequence));
  return absl::OkStatus();
}

absl::Status SequenceAt(OnnxNode& n) {
  ASSIGN_OR_RETURN(const OnnxSequence sequence, n.SequenceInput(0));
  const int64_t length = static_cast<int64_t>(sequence.elements.size());
  ASSIGN_OR_RETURN(const size_t at, Position(n, 1, length, length, length));
  n.SetOutput(0, sequence.elements[at]);
  return absl::OkStatus();
}

absl::Status SequenceLength(OnnxNode& n) {
  ASSIGN_OR_RETURN(const OnnxSequence sequence, n.SequenceInput(0));
  const int64_t length = static_cast<int64_t>(sequence.elements.size());
  n.SetOutput(0, n.b().Constant(Tensor::Of<int64_t>(Shape(), {length})));
  return absl::OkStatus();
}

// The sizes of the parts of `extent`. A scalar split is the size of each part except the last.
absl::StatusOr<Ints> SizesOfParts(OnnxNode& n, int64_t extent) {
  int64_t size = 1;
  if (n.has_input(1)) {
    ASSIGN_OR_RETURN(const Ints split, n.IntsInput(1));
    if (n.shape(1).rank() == 1) {
      int64_t sum = 0;
      for (int64_t part : split) {
        if (part < 0 || part > extent) return n.Error() << "split " << ListToString(split) << " of extent " << extent;
        sum += part;
      }
      if (sum != extent) return n.Error() << "split " << ListToString(split) << " of extent " << extent;
      RETURN_IF_ERROR(CheckUnrolled(n, static_cast<int64_t>(split.size()), "elements"));
      return split;
    }
    size = split[0];
  }
  if (size < 1) return n.Error() << "split " << size << ", expected at least 1";
  RETURN_IF_ERROR(CheckUnrolled(n, extent / size + (extent % size != 0), "elements"));
  Ints sizes;
  for (int64_t start = 0; start < extent; start += size) {
    sizes.push_back(std::min(size, extent - start));
    if (extent - start <= size) break;
  }
  return sizes;
}

absl::Status SplitToSequence(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 0), x.shape().rank()));
  const bool keeps_dim = n.Flag("keepdims", true) || n.has_input(1);
  ASSIGN_OR_RETURN(const Ints sizes, SizesOfParts(n, x.shape()[axis]));
  OnnxSequence sequence{x.dtype(), {}};
  Ints start(static_cast<size_t>(x.shape().rank()), 0), limit = x.shape().dims();
  const size_t at = static_cast<size_t>(axis);
  for (int64_t size : sizes) {
    limit[at] = start[at] + size;
    const Value part = n.b().Slice(x, start, limit);
    sequence.elements.push_back(keeps_dim ? part : n.b().Reshape(part, x.shape().Without({axis})));
    start[at] = limit[at];
  }
  RETURN_IF_ERROR(n.b().status());
  n.SetAnyOutput(0, std::move(sequence));
  return absl::OkStatus();
}

absl::Status ConcatFromSequence(OnnxNode& n) {
  ASSIGN_OR_RETURN(OnnxSequence sequence, n.SequenceInput(0));
  if (!n.has_attr("axis")) return n.Error() << "attribute axis is missing";
  const bool is_new = n.Flag("new_axis", false);
  std::vector<Value>& xs = sequence.elements;
  if (xs.empty()) return n.Error() << "the sequence has no elements, so the shape of the result is unknown";
  ASSIGN_OR_RETURN(const int64_t axis, n.Axis(n.Int("axis", 0), xs[0].shape().rank() + (is_new ? 1 : 0)));
  if (is_new) {
    for (Value x : xs) {
      if (x.type() != xs[0].type())
        return n.Error() << "elements " << xs[0].type() << " and " << x.type() << " cannot be stacked";
    }
    Ints dims = xs[0].shape().dims();
    dims.insert(dims.begin() + axis, 1);
    for (Value& x : xs) x = n.b().Reshape(x, Shape(dims));
  }
  n.SetOutput(0, xs.size() == 1 ? xs[0] : n.b().Concat(xs, axis));
  return absl::OkStatus();
}

absl::Status Optional(OnnxNode& n) {
  n.Ignore("type");  // type of the content
  n.SetAnyOutput(0, n.AnyInput(0));
  return absl::OkStatus();
}

absl::Status OptionalHasElement(OnnxNode& n) {
  n.SetOutput(0, n.b().Constant(Tensor::Scalar(DType::kBool, n.has_input(0) ? 1 : 0)));
  return absl::OkStatus();
}

absl::Status OptionalGetElement(OnnxNode& n) {
  if (!n.has_input(0)) return n.Error() << "the optional is empty";
  n.SetAnyOutput(0, n.AnyInput(0));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> SequenceOps() {
  constexpr bool kAnyKind = true;
  return {
      {"SequenceConstruct", 11, kNoEnd, 1, kAnyNumber, SequenceConstruct},
      {"SequenceEmpty", 11, kNoEnd, 0, 0, SequenceEmpty},
      {"SequenceInsert", 11, kNoEnd, 2, 3, SequenceInsert, kAnyKind},
      {"SequenceErase", 11, kNoEnd, 1, 2, SequenceErase, kAnyKind},
      {"SequenceAt", 11, kNoEnd, 2, 2, SequenceAt, kAnyKind},
      {"SequenceLength", 11, kNoEnd, 1, 1, SequenceLength, kAnyKind},
      {"SplitToSequence", 11, kNoEnd, 1, 2, SplitToSequence},
      {"ConcatFromSequence", 11, kNoEnd, 1, 1, ConcatFromSequence, kAnyKind},
      {"Optional", 15, kNoEnd, 0, 1, Optional, kAnyKind},
      {"OptionalHasElement", 15, kNoEnd, 0, 1, OptionalHasElement, kAnyKind},
      {"OptionalGetElement", 15, kNoEnd, 0, 1, OptionalGetElement, kAnyKind},
  };
}

}  // namespace lockstep
