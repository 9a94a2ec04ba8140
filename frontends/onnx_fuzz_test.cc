// Damaged files: importing any bytes returns a model or an error that names the file. In sanitized builds, the address
// and undefined-behaviour sanitizers check it too.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/verifier.h"
#include "frontends/onnx_importer.h"

namespace lockstep {
namespace {

std::string BytesOfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Imports `bytes`, and checks the model or the error. Returns true if it was a model.
bool TryImport(const std::string& bytes, const std::string& what) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / "damaged.onnx").string();
  std::ofstream(path, std::ios::binary) << bytes;
  const auto model = ImportOnnx(path, {{{"batch", 4}}});
  if (model.ok()) {
    const absl::Status status = Verify(model->graph);
    EXPECT_TRUE(status.ok()) << what << ": " << status;
  } else {
    EXPECT_THAT(model.status().message(), testing::HasSubstr("damaged.onnx: ")) << what;
  }
  return model.ok();
}

class OnnxFuzzTest : public testing::TestWithParam<const char*> {};

TEST_P(OnnxFuzzTest, TruncatedAnywhere) {
  const std::string bytes = BytesOfFile(GetParam());
  ASSERT_GT(bytes.size(), 1000u);
  for (size_t size = 0; size < bytes.size(); size += size < 200 ? 1 : 5) {
    // The last part of each file, the opset or a function that is called, is required.
    EXPECT_FALSE(TryImport(bytes.substr(0, size), "truncated to " + std::to_string(size)));
  }
}

TEST_P(OnnxFuzzTest, EveryByteChanged) {
  const std::string bytes = BytesOfFile(GetParam());
  for (size_t at = 0; at < bytes.size(); ++at) {
    const int flip = std::array{0x01, 0x40, 0x80, 0xff}[at % 4];
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ flip);
    TryImport(damaged, "byte " + std::to_string(at) + " xor " + std::to_string(flip));
  }
}

TEST_P(OnnxFuzzTest, RangesRemovedDoubledAndOverwritten) {
  const std::string bytes = BytesOfFile(GetParam());
  std::mt19937 random(7);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  for (int round = 0; round < 1000; ++round) {
    std::string damaged = bytes;
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = below(damaged.size()), length = 1 + below(16);
      switch (below(3)) {
        case 0: damaged.erase(at, length); break;
        case 1: damaged.insert(at, damaged.substr(at, length)); break;
        default:
          for (size_t i = at; i < std::min(at + length, damaged.size()); ++i) damaged[i] = static_cast<char>(random());
      }
    }
    TryImport(damaged, "round " + std::to_string(round));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OnnxFuzzTest,
                         testing::Values("test/models/mlp.onnx", "test/models/convnet_bn.onnx",
                                         "frontends/subgraphs.onnx"),
                         [](const auto& info) { return std::filesystem::path(info.param).stem().string(); });

}  // namespace
}  // namespace lockstep
