// Coverage-guided fuzzing of the importer: any serialized model must end in a graph that verifies or in an error whose
// message is valid text. `make fuzz` builds it with libFuzzer and runs it; see https://llvm.org/docs/LibFuzzer.html.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/text.h"
#include "core/verifier.h"
#include "frontends/onnx_importer.h"
#include "test/fuzz/onnx_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ImportOptions options;
  if (bytes.find("batch") != std::string_view::npos) options.dims = {{"batch", 4}};
  const auto model = ImportOnnxBytes(bytes, "<model>", options);
  if (model.ok()) {
    const absl::Status status = Verify(model->graph);
    LOCKSTEP_CHECK(status.ok()) << status;
  } else {
    LOCKSTEP_CHECK(FindInvalidText(std::string(model.status().message())) == std::string_view::npos)
        << "an error whose message is not valid text";
  }
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  const std::string mutated =
      seed % 4 == 0 ? "" : lockstep::MutateOnnx({reinterpret_cast<const char*>(data), size}, seed);
  if (mutated.empty() || mutated.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  mutated.copy(reinterpret_cast<char*>(data), mutated.size());
  return mutated.size();
}
