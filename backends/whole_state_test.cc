// Whole states, assembled from the parts that ranks hold.

#include "runtime/execution/whole_state.h"

#include <cstring>
#include <numeric>
#include <thread>

#include "backends/executor_test_support.h"
#include "core/local_part.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/execution/executor.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kStates[] = R"(
graph @states(%x: f32[8] split(0), state %whole: f32[4,6], state %rows: f64[4,6] split(0), state %columns: bf16[4,6] split(1, model), state %both: i64[4,6] split(0, model) split(1, data), state %count: i64[], state %none: f32[4,0] split(0)) -> (y: f32[8]) {
  %y = neg %x : f32[8]
  return %y
}
)";

Tensor Counting(const TensorType& type) {
  Tensor tensor({DType::kI32, type.shape});
  std::iota(tensor.mutable_data<int32_t>().begin(), tensor.mutable_data<int32_t>().end(), 1);
  return tensor.Converted(type.dtype);
}

CompileOptions On(Mesh mesh) {
  CompileOptions options;
  options.mesh = std::move(mesh);
  return options;
}

// Assigns each rank's part of every state separately, and assembles the whole.
absl::Status AssignAndRead(const Mesh& mesh, Communicator& communicator, Device& device, int& read) {
  ASSIGN_OR_RETURN(const auto executor, Load(kStates, communicator, device, On(mesh)));
  for (const ValueInfo& state : executor->executable().states) {
    const Tensor expected = Counting(state.global_type);
    const Tensor part = LocalPart(expected, state.placements, mesh, communicator.rank());
    EXPECT_EQ(part.type(), state.local_type);
    RETURN_IF_ERROR(executor->AssignState(state.name, {part.type(), part.bytes()}));
    Tensor whole(state.global_type);
    std::memset(whole.mutable_bytes(), 0xff, whole.num_bytes());
    const bool is_first = communicator.rank() == 0;
    RETURN_IF_ERROR(ReadWholeState(*executor, communicator, state.name,
                                   {whole.type(), is_first ? whole.mutable_bytes() : nullptr}));
    if (!is_first) continue;
    EXPECT_EQ(whole, expected) << state.name << " on " << mesh.ToString();
    ++read;
  }
  return absl::OkStatus();
}

TEST(WholeState, IsWhatTheRanksHold) {
  for (const Mesh& mesh : {Mesh({{"data", 1}, {"model", 1}}), Mesh({{"data", 2}, {"model", 1}}),
                           Mesh({{"data", 2}, {"model", 2}}), Mesh({{"model", 2}, {"data", 2}})}) {
    int read = 0;
    const auto all = StatusOfEach(static_cast<int>(mesh.num_ranks()), [&](Communicator& communicator, Device& device) {
      return AssignAndRead(mesh, communicator, device, read);
    });
    for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(read, 6);
  }
}

TEST(WholeState, ValuesThatAreNoPartsAreRefusedOnEveryRank) {
  constexpr char kLocal[] = R"(
graph @own(%x: f32[2] split(0), state %noise: f32[3] local) -> (y: f32[2]) {
  %y = neg %x : f32[2]
  return %y
}
)";
  const auto all = StatusOfEach(2, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(kLocal, communicator, device));
    EXPECT_EQ(ReadWholeState(*executor, communicator, "signal", {}).code(), absl::StatusCode::kNotFound);
    Tensor whole(TensorType{DType::kF32, {3}});
    const absl::Status status = ReadWholeState(*executor, communicator, "noise", {whole.type(), whole.mutable_bytes()});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("state noise is local along data"), HasSubstr("no global value")));
    return communicator.Barrier("after");  // no rank has aborted
  });
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
}

TEST(WholeState, OneThreadAtATime) {
  const auto all = StatusOfEach(2, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(StepFor(2), communicator, device));
    Tensor whole(TensorType{DType::kF32, {3, 5}});
    const ExclusiveUse use(communicator.in_use());
    absl::Status status;
    std::thread([&] {
      status = ReadWholeState(*executor, communicator, "w", {whole.type(), whole.mutable_bytes()});
    }).join();
    return status;
  });
  for (const absl::Status& status : all) EXPECT_THAT(MessageOf(status), HasSubstr("in use by another thread"));
}

}  // namespace
}  // namespace lockstep
