// Operators that give a value another shape.

#include <algorithm>
#include <numeric>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

absl::Status Reshape(OnnxNode& n) {
  const bool allow_zero = n.opset() >= 14 && n.Flag("allowzero", false);
  ASSIGN_OR_RETURN(Ints dims, n.IntsInput(1));
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const Ints wanted = dims;
  int64_t unknown = -1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && !allow_zero) {
      if (!x.shape().has_dim(static_cast<int64_t>(i)))
        return n.Error() << "dimension " << i << " of " << ListToString(wanted) << " copies one that " << x.type()
                         << " does not have";
      dims[i] = x.shape()[static_cast<int64_t>(i)];
    } else if (dims[i] == -1) {
      if (unknown >= 0) return n.Error() << "two dimensions of " << ListToString(wanted) << " are -1";
      unknown = static_cast<int64_t>(i);
      dims[i] = 1;
    }
  }
  ASSIGN_OR_RETURN(Shape shape, n.CheckedShape(dims));
  if (unknown >= 0) {
    if (shape.num_elements() == 0) return n.Error() << "the -1 of " << ListToString(wanted) << " may be any number";
    shape = shape.WithDim(unknown, x.shape().num_elements() / shape.num_elements());
  }
  if (shape.num_elements() != x.shape().num_elements())
    return n.Error() << x.type() << " cannot have the shape " << ListToString(wanted);
  n.SetOutput(0, n.b().Reshape(x, shape));
  return absl::OkStatus();
}

absl::Status Flatten(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  int64_t axis = n.Int("axis", 1);
  const int64_t rank = x.shape().rank();
  if (axis < -rank || axis > rank) return n.Error() << "attribute axis is " << axis << ", outside " << x.type();
  if (axis < 0) axis += rank;
  int64_t rows = 1, columns = 1;
  for (int64_t i = 0; i < rank; ++i) (i < axis ? rows : columns) *= x.shape()[i];
  n.SetOutput(0, n.b().Reshape(x, Shape({rows, columns})));
  return absl::OkStatus();
}

absl::Status Transpose(OnnxNode& n) {
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  Ints reversed(static_cast<size_t>(x.shape().rank()));
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  n.SetOutput(0, n.b().Transpose(x, n.Ints("perm", reversed)));
  return absl::OkStatus();
}

absl::Status Squeeze(OnnxNode& n) {
  ASSIGN_OR_RETURN(std::optional<Ints> axes, n.IntsAttrOrInput("axes", 13, 1));
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  if (!axes) {
    axes.emplace();
    for (int64_t i = 0; i < x.shape().rank(); ++i) {
      if (x.shape()[i] == 1) axes->push_back(i);
    }
  }
  ASSIGN_OR_RETURN(*axes, n.Axes(*axes, x.shape().rank()));
  for (int64_t axis : *axes) {
    if (x.shape()[axis] != 1) return n.Error() << "axis " << axis << " of " << x.type() << " is not of extent 1";
  }
  n.SetOutput(0, n.b().Reshape(x, x.shape().Without(*axes)));
  return absl::OkStatus();
}

absl::Status Unsqueeze(OnnxNode& n) {
  ASSIGN_OR_RETURN(const std::optional<Ints> given, n.IntsAttrOrInput("axes", 13, 1));
  if (!given) return n.Error() << "axes are missing";
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  const int64_t rank = x.shape().rank() + static_cast<int64_t>(given->size());
  ASSIGN_OR_RETURN(const Ints axes, n.Axes(*given, rank));
  Ints dims;
  for (int64_t i = 0, next = 0; i < rank; ++i) {
    dims.push_back(std::binary_search(axes.begin(), axes.end(), i) ? 1 : x.shape()[next++]);
  }
  n.SetOutput(0, n.b().Reshape(x, Shape(dims)));
  return absl::OkStatus();
}

absl::Status Expand(OnnxNode& n) {
  ASSIGN_OR_RETURN(Ints dims, n.IntsInput(1));
  ASSIGN_OR_RETURN(const Shape wanted, n.CheckedShape(std::move(dims)));
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  // The wanted shape is broadcast with x's, so that a 1 in it keeps x's extent.
  const int64_t rank = std::max(wanted.rank(), x.shape().rank());
  Ints result(static_cast<size_t>(rank), 1);
  for (const Shape& shape : {x.shape(), wanted}) {
    for (int64_t i = 0; i < shape.rank(); ++i) {
      int64_t& dim = result[static_cast<size_t>(rank - shape.rank() + i)];
      if (shape[i] == 1 || shape[i] == dim) continue;
      if (dim != 1) return n.Error() << x.type() << " does not expand to " << wanted;
      dim = shape[i];
    }
  }
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(std::move(result)));
  n.SetOutput(0, BroadcastTo(n.b(), x, shape));
  return absl::OkStatus();
}

// [a, b] tiled by [r, s] is [a, b] broadcast to [r, a, s, b] and reshaped to [r * a, s * b].
absl::Status Tile(OnnxNode& n) {
  ASSIGN_OR_RETURN(const Ints repeats, n.IntsInput(1));
  const Value x = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  if (static_cast<int64_t>(repeats.size()) != x.shape().rank())
    return n.Error() << "repeats " << ListToString(repeats) << " for " << x.type();
  Ints apart, dims;
  for (int64_t i = 0; i < x.shape().rank(); ++i) {
    apart.push_back(repeats[static_cast<size_t>(i)]);
    dims.push_back(static_cast<int64_t>(apart.size()));
    apart.push_back(x.shape()[i]);
  }
  ASSIGN_OR_RETURN(const Shape broadcast, n.CheckedShape(apart));
  Ints merged;
  for (size_t i = 0; i < apart.size(); i += 2) merged.push_back(apart[i] * apart[i + 1]);
  n.SetOutput(0, n.b().Reshape(n.b().Broadcast(x, broadcast, dims), Shape(merged)));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> ShapeOps() {
  return {
      {"Reshape", 5, kNoEnd, 2, 2, Reshape},
      {"Flatten", 1, kNoEnd, 1, 1, Flatten},
      {"Transpose", 1, kNoEnd, 1, 1, Transpose},
      {"Squeeze", 1, 12, 1, 1, Squeeze},
      {"Squeeze", 13, kNoEnd, 1, 2, Squeeze},
      {"Unsqueeze", 1, 12, 1, 1, Unsqueeze},
      {"Unsqueeze", 13, kNoEnd, 2, 2, Unsqueeze},
      {"Expand", 8, kNoEnd, 2, 2, Expand},
      {"Tile", 6, kNoEnd, 2, 2, Tile},
  };
}

}  // namespace lockstep
