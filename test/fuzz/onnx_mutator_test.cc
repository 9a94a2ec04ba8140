// The mutator's results parse, mostly differ from the input, and are the same for the same seed.

#include "test/fuzz/onnx_mutator.h"

#include <fstream>
#include <iterator>
#include <set>

#include "frontends/onnx_importer.h"
#include "gtest/gtest.h"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

std::string Model() {
  std::ifstream file("test/models/convnet_bn.onnx", std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(OnnxMutator, ModelsStayModels) {
  const std::string model = Model();
  ASSERT_TRUE(ImportOnnxBytes(model, "<model>", {{{"batch", 4}}}).ok());
  std::set<std::string> mutants;
  int imported = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const std::string mutant = MutateOnnx(model, seed);
    EXPECT_EQ(MutateOnnx(model, seed), mutant) << seed;
    EXPECT_TRUE(onnx::ModelProto().ParseFromString(mutant)) << seed;
    imported += ImportOnnxBytes(mutant, "<model>", {{{"batch", 4}}}).ok();
    mutants.insert(mutant);
  }
  EXPECT_GT(mutants.size(), 250U);
  // Some mutants are refused and some are imported.
  EXPECT_GT(imported, 15);
  EXPECT_LT(imported, 150);
}

TEST(OnnxMutator, WhatIsNoModelIsLeftToBytes) {
  EXPECT_EQ(MutateOnnx("no model", 1), "");
  EXPECT_EQ(MutateOnnx("", 1), "");
}

}  // namespace
}  // namespace lockstep
