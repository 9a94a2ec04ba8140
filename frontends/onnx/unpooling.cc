// Inverses of windows: MaxUnpool puts maxima back, Col2Im adds columns up to an image.

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/windows.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

// Puts each element of x at its index in the flattened result, with zeros elsewhere. A larger output_shape is filled
// with zeros; the indices refer to the shape without it.
absl::Status MaxUnpool(OnnxNode& n) {
  Builder& b = n.b();
  RETURN_IF_ERROR(n.RequireRank(0, 3));
  const Value x = n.input(0), indices = n.input(1);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const OnnxWindows w,
                   ReadWindows(n, n.Ints("kernel_shape"), /*has_dilation=*/false, /*has_ceil_mode=*/false));
  if (indices.type() != TensorType{DType::kI64, x.shape()})
    return n.Error() << "indices are " << indices.type() << ", expected " << TensorType{DType::kI64, x.shape()};
  Ints dims = x.shape().dims();
  for (size_t i = 0; i < w.size.size(); ++i)
    dims[i + 2] = (dims[i + 2] - 1) * w.stride[i] + w.size[i] - w.padding_low[i] - w.padding_high[i];
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(dims));
  Ints output = dims, rest = dims;
  if (n.has_input(2)) {
    ASSIGN_OR_RETURN(output, n.IntsInput(2));
  }
  bool fits = output.size() == dims.size();
  for (size_t i = 0; fits && i < dims.size(); ++i) {
    rest[i] = output[i] - dims[i];
    fits = rest[i] >= 0;
  }
  if (!fits) return n.Error() << "output_shape is " << ListToString(output) << ", expected at least " << shape;
  RETURN_IF_ERROR(n.CheckedShape(output).status());
  const Shape flat({shape.num_elements()}), all({x.shape().num_elements()});
  const Value y = b.Scatter(b.Splat(0, {x.dtype(), flat}), b.Reshape(indices, all), b.Reshape(x, all), 0, 0, "replace");
  const Value image = b.Reshape(y, shape);
  n.SetOutput(0, output == dims ? image : b.Pad(image, Ints(dims.size(), 0), rest));
  return absl::OkStatus();
}

// A list attribute with an entry for each dimension of the image, each at least `least`.
absl::StatusOr<Ints> PerDim(OnnxNode& n, const char* name, size_t count, int64_t default_value, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const Ints list = n.Ints(name, Ints(count, default_value));
  bool fits = list.size() == count;
  for (int64_t entry : list) fits = fits && entry >= least && entry <= kMost;
  if (fits) return list;
  return n.Error() << "attribute " << name << " is " << ListToString(list) << ", expected " << count
                   << " entries of at least " << least;
}

// Turns [N, C * elements of a block, positions] into [N, C, image...]. Overlapping blocks are added.
absl::Status Col2Im(OnnxNode& n) {
  Builder& b = n.b();
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  ASSIGN_OR_RETURN(const Ints image, n.IntsInput(1));
  ASSIGN_OR_RETURN(const Ints block, n.IntsInput(2));
  const size_t rank = image.size();
  ASSIGN_OR_RETURN(const Ints stride, PerDim(n, "strides", rank, 1, 1));
  ASSIGN_OR_RETURN(const Ints dilation, PerDim(n, "dilations", rank, 1, 1));
  ASSIGN_OR_RETURN(const Ints pads, PerDim(n, "pads", 2 * rank, 0, 0));
  RETURN_IF_ERROR(n.CheckedShape(image).status());
  ASSIGN_OR_RETURN(const Shape block_shape, n.CheckedShape(block));
  if (x.shape().rank() != 3 || block.size() != rank || rank == 0) {
    return n.Error() << "input is " << x.type() << " for an image " << ListToString(image) << " of blocks "
                     << ListToString(block) << ", expected rank 3 and as many dimensions";
  }
  Ints padded, low = {0, 0}, limit = {x.shape()[0], 0}, positions;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t span = (block[i] - 1) * dilation[i] + 1;
    padded.push_back(image[i] + pads[i] + pads[i + rank]);
    if (block[i] < 1 || span > padded[i])
      return n.Error() << "blocks " << ListToString(block) << " do not fit into the padded " << ListToString(padded);
    positions.push_back((padded[i] - span) / stride[i] + 1);
    low.push_back(pads[i]);
    limit.push_back(pads[i] + image[i]);
  }
  const int64_t elements = block_shape.num_elements();
  limit[1] = x.shape()[1] / elements;
  if (x.shape()[1] % elements != 0 || x.shape()[2] != Shape(positions).num_elements()) {
    return n.Error() << "input is " << x.type() << ", expected a multiple of " << elements << " rows and "
                     << Shape(positions).num_elements() << " columns";
  }
  Ints dims = {x.shape()[0], limit[1]};
  dims.insert(dims.end(), block.begin(), block.end());
  dims.insert(dims.end(), positions.begin(), positions.end());
  const Value whole = b.Op("overlap_add", {b.Reshape(x, Shape(dims))},
                           {{"dim", int64_t{2}}, {"size", padded}, {"stride", stride}, {"dilation", dilation}});
  n.SetOutput(0, padded == image ? whole : b.Slice(whole, low, limit));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> UnpoolingOps() {
  return {
      {"MaxUnpool", 9, kNoEnd, 2, 3, MaxUnpool},
      {"Col2Im", 18, kNoEnd, 3, 3, Col2Im},
  };
}

}  // namespace lockstep
