#include "backends/conformance/tested_backend.h"

#include "absl/flags/flag.h"
#include "backends/conformance/tested_backend.h"
#include "core/check.h"

ABSL_FLAG(std::string, backend, "cpu", "the backend that is tested");

namespace lockstep {

const Backend& TestedBackend() {
  static const Backend* const backend = [] {
    auto created = CreateBackend(absl::GetFlag(FLAGS_backend));
    LOCKSTEP_CHECK(created.ok()) << created.status().ToString();
    return created->release();
  }();
  return *backend;
}

}  // namespace lockstep
