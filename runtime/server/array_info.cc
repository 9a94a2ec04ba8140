#include "runtime/server/array_info.h"

#include <algorithm>
#include <sstream>

namespace lockstep {
namespace {

// Returns the number of elements for one index of dimension 0.
int64_t RowElements(const TensorType& type) {
  const std::vector<int64_t>& dims = type.shape.dims();
  return dims.empty() || type.num_elements() == 0 ? 1 : type.num_elements() / dims[0];
}

}  // namespace

TensorType ArrayInfo::piece_type() const {
  if (is_whole()) return type;
  const int64_t row = RowElements(type);
  if (begin % row != 0 || count % row != 0) return {type.dtype, Shape({count})};
  std::vector<int64_t> dims = type.shape.dims();
  dims[0] = count / row;
  return {type.dtype, Shape(std::move(dims))};
}

std::string ArrayInfo::ToString() const {
  std::ostringstream text;
  text << static_cast<int>(type.dtype) << ' ' << begin << ' ' << count << ' ' << synchronous << ' ' << max_staleness
       << ' ' << type.shape.rank();
  for (const int64_t dim : type.shape.dims()) text << ' ' << dim;
  return text.str();
}

absl::StatusOr<ArrayInfo> ArrayInfo::Parse(std::string_view text) {
  std::istringstream in{std::string(text)};
  ArrayInfo info;
  int dtype = -1;
  size_t rank = 0;
  in >> dtype >> info.begin >> info.count >> info.synchronous >> info.max_staleness >> rank;
  std::vector<int64_t> dims(in ? std::min<size_t>(rank, 64) : 0);
  for (int64_t& dim : dims) in >> dim;
  if (!in || dtype < 0 || dtype > static_cast<int>(DType::kBool)) return Internal() << "no array: " << text;
  info.type = {static_cast<DType>(dtype), Shape(std::move(dims))};
  return info;
}

std::vector<PlacedPiece> PlaceArray(const TensorType& type, int64_t bigarray_bound, std::vector<int64_t>& bytes) {
  const int64_t elements = type.num_elements(), servers = static_cast<int64_t>(bytes.size());
  if (elements <= bigarray_bound || servers == 1 || elements < servers) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += static_cast<int64_t>(type.num_bytes());
    return {{static_cast<int>(least - bytes.begin()), 0, elements}};
  }
  const int64_t row = RowElements(type), rows = elements / row;
  const int64_t unit = rows >= servers ? row : 1, units = elements / unit;
  std::vector<PlacedPiece> pieces;
  for (int64_t s = 0; s < servers; ++s) {
    const int64_t begin = units * s / servers * unit, end = units * (s + 1) / servers * unit;
    bytes[static_cast<size_t>(s)] += (end - begin) * static_cast<int64_t>(SizeOf(type.dtype));
    pieces.push_back({static_cast<int>(s), begin, end - begin});
  }
  return pieces;
}

}  // namespace lockstep
