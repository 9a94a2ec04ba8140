// MeshOf: a mesh from Python's axes and sizes.

#include "core/option_text.h"
#include "python_bindings/bindings.h"

namespace lockstep::python {

absl::StatusOr<Mesh> MeshOf(const std::vector<std::pair<std::string, int64_t>>& axes) {
  Mesh mesh;
  const absl::Status status = FromText(ToText(axes), mesh);
  if (!status.ok()) return InvalidArgument() << "mesh" << status.message();
  return mesh;
}

}  // namespace lockstep::python
