// One test per external library checks that it compiles, links, and works at run time. The last one is of num_cases.h.
#include <benchmark/benchmark.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <mpi.h>
#include <omp.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "bazel/num_cases.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "onnx/onnx.pb.h"

namespace lockstep {
namespace {

TEST(SmokeTest, Abseil) {
  absl::flat_hash_map<std::string, int> ranks = {{"a", 1}};
  absl::StatusOr<int> missing = absl::NotFoundError(absl::StrFormat("rank %d", ranks["a"]));
  EXPECT_THAT(missing.status().message(), testing::HasSubstr("rank 1"));
}

TEST(SmokeTest, LlvmCompilesAndRunsAFunction) {
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  llvm::Expected<std::unique_ptr<llvm::orc::LLJIT>> jit = llvm::orc::LLJITBuilder().create();
  ASSERT_TRUE(static_cast<bool>(jit)) << llvm::toString(jit.takeError());

  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = std::make_unique<llvm::Module>("smoke", *context);
  llvm::Type* i32 = llvm::Type::getInt32Ty(*context);
  llvm::Function* twice = llvm::Function::Create(llvm::FunctionType::get(i32, {i32}, false),
                                                 llvm::Function::ExternalLinkage, "twice", *module);
  llvm::IRBuilder<> builder(llvm::BasicBlock::Create(*context, "entry", twice));
  builder.CreateRet(builder.CreateAdd(twice->getArg(0), twice->getArg(0)));

  llvm::Error added = (*jit)->addIRModule(llvm::orc::ThreadSafeModule(std::move(module), std::move(context)));
  ASSERT_FALSE(static_cast<bool>(added));
  llvm::Expected<llvm::orc::ExecutorAddr> address = (*jit)->lookup("twice");
  ASSERT_TRUE(static_cast<bool>(address)) << llvm::toString(address.takeError());
  EXPECT_EQ(address->toPtr<int32_t (*)(int32_t)>()(21), 42);
}

TEST(SmokeTest, OneDnnHasACpuEngineOfVersion3) {
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  EXPECT_EQ(engine.get_kind(), dnnl::engine::kind::cpu);
  EXPECT_EQ(dnnl_version()->major, 3);
  EXPECT_EQ(dnnl_version()->cpu_runtime, static_cast<unsigned>(DNNL_RUNTIME_OMP));
}

TEST(SmokeTest, MpiHeaderAndLibraryAgree) {
  int version = 0;
  int subversion = 0;
  ASSERT_EQ(MPI_Get_version(&version, &subversion), MPI_SUCCESS);
  EXPECT_EQ(version, MPI_VERSION);
  EXPECT_EQ(subversion, MPI_SUBVERSION);
}

// Checks that there is one OpenMP runtime: a second one would be a second thread pool on the same cores.
TEST(SmokeTest, OneOpenMpRuntime) {
  EXPECT_GE(omp_get_max_threads(), 1);
  std::vector<std::string> runtimes;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        absl::string_view path = info->dlpi_name;
        for (absl::string_view name : {"libgomp", "libomp", "libiomp"}) {
          if (absl::StrContains(path, name)) {
            static_cast<std::vector<std::string>*>(found)->emplace_back(path);
          }
        }
        return 0;
      },
      &runtimes);
  EXPECT_THAT(runtimes, testing::ElementsAre(testing::HasSubstr("libgomp.so.1")));
}

TEST(SmokeTest, OnnxModelRoundTrips) {
  onnx::ModelProto model;
  EXPECT_TRUE(model.ParseFromString(""));
  model.mutable_graph()->add_node()->set_op_type("MatMul");
  onnx::ModelProto read;
  ASSERT_TRUE(read.ParseFromString(model.SerializeAsString()));
  EXPECT_EQ(read.graph().node(0).op_type(), "MatMul");
  EXPECT_FALSE(read.ParseFromString("\x0f not a model"));
}

TEST(SmokeTest, Benchmark) {
  EXPECT_NE(benchmark::RegisterBenchmark("nothing", [](benchmark::State&) {}), nullptr);
}

TEST(NumCases, AreAllAThirdOrATenthAndAtLeastOne) {
  const auto of_30_and_2 = [](const char* everything, const char* sanitized) {
    const auto set = [](const char* name, const char* value) {
      return value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    };
    set("LOCKSTEP_TEST_EVERYTHING", everything);
    set("LOCKSTEP_SANITIZED", sanitized);
    return std::pair(NumCases(30), NumCases(2));
  };
  EXPECT_EQ(of_30_and_2(nullptr, nullptr), std::pair(10, 1));
  EXPECT_EQ(of_30_and_2("1", nullptr), std::pair(30, 2));
  EXPECT_EQ(of_30_and_2(nullptr, "1"), std::pair(3, 1));
  EXPECT_EQ(of_30_and_2("1", "1"), std::pair(3, 1));
}

}  // namespace
}  // namespace lockstep
