// MeshOf: a mesh from Python's axes and sizes.

#include <algorithm>
#include <cctype>

#include "python_bindings/bindings.h"

namespace lockstep::python {

absl::StatusOr<Mesh> MeshOf(const std::vector<std::pair<std::string, int64_t>>& axes) {
  constexpr int64_t kMaxRanks = 1 << 15;  // as in the verifier
  std::vector<MeshAxis> result;
  int64_t ranks = 1;
  for (const auto& [name, size] : axes) {
    const bool is_word = !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) &&
                         std::all_of(name.begin(), name.end(),
                                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
    if (!is_word)
      return InvalidArgument() << "mesh: the name of an axis is '" << name << "', expected letters and digits";
    if (size < 1) return InvalidArgument() << "mesh axis " << name << " has size " << size << ", expected at least 1";
    if (size > kMaxRanks || (ranks *= size) > kMaxRanks)
      return InvalidArgument() << "mesh: axis " << name << " has size " << size << ", which makes too many ranks";
    result.push_back({name, size});
  }
  return Mesh(std::move(result));
}

}  // namespace lockstep::python
