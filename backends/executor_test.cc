// The executor: messages for bad calls, the states that it keeps, and that no rank waits for one that failed.

#include "runtime/execution/executor.h"

#include <barrier>
#include <cstring>
#include <thread>

#include "backends/executor_test_support.h"
#include "core/printer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/exclusive_use.h"
#include "runtime/execution/agreement.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class OneRank : public testing::Test {
 protected:
  // Calls f with an executor of kStep.
  void With(const std::function<void(Executor&)>& f) {
    const absl::Status status = ForEachRank(1, [&](Communicator& communicator) -> absl::Status {
      const auto device = CreateHostDevice();
      ASSIGN_OR_RETURN(const auto executor, Load(kStep, communicator, *device));
      f(*executor);
      return absl::OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status;
  }
};

TEST_F(OneRank, BadInputsAreNamed) {
  With([](Executor& executor) {
    const Batch batch(4);
    auto inputs = batch.inputs();
    inputs.pop_back();
    EXPECT_THAT(MessageOf(executor.Run(inputs, {})), HasSubstr("input y is missing; given are x"));
    inputs = batch.inputs();
    inputs.push_back({"z", inputs[0].tensor});
    EXPECT_THAT(MessageOf(executor.Run(inputs, {})), HasSubstr("there is no input z; inputs are x, y"));
    inputs = batch.inputs();
    inputs.push_back(inputs[0]);
    EXPECT_THAT(MessageOf(executor.Run(inputs, {})), HasSubstr("input x is given twice"));
    const Batch wrong(3);
    EXPECT_THAT(MessageOf(executor.Run(wrong.inputs(), {})), HasSubstr("input x: expected f32[4,3], found f32[3,3]"));
    inputs = batch.inputs();
    inputs[1].tensor.type.dtype = DType::kI32;
    EXPECT_THAT(MessageOf(executor.Run(inputs, {})), HasSubstr("input y: expected i64[4], found i32[4]"));
    inputs = batch.inputs();
    inputs[0].tensor.data = nullptr;
    EXPECT_THAT(MessageOf(executor.Run(inputs, {})), HasSubstr("input x: the pointer is null"));
    Tensor loss(TensorType{DType::kF32, {}});
    const std::vector<NamedResult> results = {{"accuracy", {loss.type(), loss.mutable_bytes()}}};
    EXPECT_THAT(MessageOf(executor.Run(batch.inputs(), results)),
                HasSubstr("there is no result accuracy; results are loss, old"));
    EXPECT_TRUE(executor.Run(batch.inputs(), {}).ok());  // later calls succeed
  });
}

TEST_F(OneRank, LabelOutOfRangeNamesTheOp) {
  With([](Executor& executor) {
    Batch batch(4);
    batch.y.mutable_data<int64_t>()[2] = 5;
    const std::string message = MessageOf(executor.Run(batch.inputs(), {}));
    EXPECT_THAT(message, HasSubstr("label 5 at position [2] is outside [0, 5)"));
    EXPECT_THAT(message, Not(HasSubstr("ignore_index")));
    EXPECT_THAT(message, HasSubstr("onnx:/loss"));
    batch.y.mutable_data<int64_t>()[2] = -100;  // PyTorch's ignore_index
    EXPECT_THAT(MessageOf(executor.Run(batch.inputs(), {})),
                HasSubstr("label -100 at position [2] is outside [0, 5); ignore_index=-100 of the loss leaves out"));
  });
}

// A state in the test's memory, aligned only to its elements.
struct Elsewhere {
  explicit Elsewhere(float value) : values(1 + 15 + 1, value) {}
  TensorRef ref() { return {{DType::kF32, {3, 5}}, values.data() + 1}; }
  std::vector<float> values;
};

TEST_F(OneRank, AStateLiesWhereItIsBound) {
  const TensorType type{DType::kF32, {3, 5}};
  const Batch batch(4);
  Tensor expected(type);
  With([&](Executor& executor) {
    const Tensor start = Tensor::Full(type, 2.0);
    ASSERT_TRUE(executor.AssignState("w", {type, start.bytes()}).ok());
    for (int run = 0; run < 2; ++run) ASSERT_TRUE(executor.Run(batch.inputs(), {}).ok());
    ASSERT_TRUE(executor.ReadState("w", {type, expected.mutable_bytes()}).ok());
  });
  With([&](Executor& executor) {
    Elsewhere first(1), second(2);
    ASSERT_TRUE(executor.BindState("w", first.ref(), true).ok());
    ASSERT_TRUE(executor.Run(batch.inputs(), {}).ok());
    EXPECT_NE(first.values[1], 1);
    const Elsewhere as_it_was = first;
    ASSERT_TRUE(executor.BindState("w", second.ref(), true).ok());  // with its current content
    for (int run = 0; run < 2; ++run) ASSERT_TRUE(executor.Run(batch.inputs(), {}).ok());
    EXPECT_EQ(std::memcmp(&second.values[1], expected.bytes(), expected.num_bytes()), 0);
    EXPECT_EQ(first.values, as_it_was.values);  // no longer bound
    EXPECT_EQ(second.values.front(), 2);        // memory beside it is not written
    EXPECT_EQ(second.values.back(), 2);
    Tensor read(type);
    ASSERT_TRUE(executor.ReadState("w", {type, read.mutable_bytes()}).ok());
    EXPECT_EQ(read, expected);
    std::fill(second.values.begin(), second.values.end(), 2.0F);  // values written there are used
    for (int run = 0; run < 2; ++run) ASSERT_TRUE(executor.Run(batch.inputs(), {}).ok());
    EXPECT_EQ(std::memcmp(&second.values[1], expected.bytes(), expected.num_bytes()), 0);
    ASSERT_TRUE(executor.AssignState("w", {type, Tensor::Full(type, 7.0).bytes()}).ok());
    EXPECT_EQ(second.values[15], 7);
  });
}

TEST_F(OneRank, ABindingTakesThePlaceOfTheOneBeforeAndOfAnAssignment) {
  With([](Executor& executor) {
    const TensorType pair{DType::kF32, {2}};
    const Batch batch(4);
    Elsewhere memory(1);
    float fixed[2] = {3, 4}, writable[2] = {5, 6};
    ASSERT_TRUE(executor.BindState("unused", {pair, fixed}, false).ok());
    ASSERT_TRUE(executor.BindState("unused", {pair, writable}, true).ok());
    EXPECT_TRUE(executor.AssignState("unused", {pair, fixed}).ok());
    EXPECT_EQ(writable[1], 4);
    ASSERT_TRUE(executor.InvalidateStates(absl::InternalError("a doubt")).ok());
    EXPECT_THAT(MessageOf(executor.Run(batch.inputs(), {})), HasSubstr("a doubt"));
    ASSERT_TRUE(executor.BindState("unused", {pair, writable}, true).ok());
    ASSERT_TRUE(executor.BindState("w", memory.ref(), true).ok());
    const absl::Status run = executor.Run(batch.inputs(), {});
    EXPECT_TRUE(run.ok()) << run;
  });
}

TEST_F(OneRank, MemoryThatAStateCannotBeBoundToIsRefused) {
  With([](Executor& executor) {
    const TensorType pair{DType::kF32, {2}};
    const Batch batch(4);
    Elsewhere memory(1);
    float unused[2] = {3, 4};
    EXPECT_THAT(MessageOf(executor.BindState("v", memory.ref(), true)), HasSubstr("there is no state v"));
    EXPECT_THAT(MessageOf(executor.BindState("w", {pair, unused}, true)),
                HasSubstr("state w: expected f32[3,5], found f32[2]"));
    EXPECT_THAT(MessageOf(executor.BindState("w", memory.ref(), false)),
                HasSubstr("state w is updated by @step, and the memory that it would be bound to may not be written"));
    ASSERT_TRUE(executor.BindState("unused", {pair, unused}, false).ok());
    EXPECT_THAT(MessageOf(executor.AssignState("unused", {pair, unused})), HasSubstr("unused is bound to memory that"));
    ASSERT_TRUE(executor.Run(batch.inputs(), {}).ok());
    ASSERT_TRUE(executor.BindState("w", memory.ref(), true).ok());
    auto inputs = batch.inputs();
    inputs[0].tensor.data = &memory.values[4];  // 12 of the 15 elements of w
    EXPECT_THAT(MessageOf(executor.Run(inputs, {})),
                HasSubstr("input x lies in the memory that state w is bound to, which the steps write"));
    EXPECT_TRUE(executor.Run(batch.inputs(), {}).ok());
  });
}

TEST_F(OneRank, StatesStartAtZeroAndAreKept) {
  With([](Executor& executor) {
    const TensorType type{DType::kF32, {3, 5}};
    Tensor before(type), after(type), old(type), loss(TensorType{DType::kF32, {}});
    ASSERT_TRUE(executor.ReadState("w", {type, before.mutable_bytes()}).ok());
    EXPECT_EQ(before, Tensor(type));
    const Tensor ones = Tensor::Full(type, 1.0);
    ASSERT_TRUE(executor.AssignState("w", {type, ones.bytes()}).ok());
    const Batch batch(4);
    ASSERT_TRUE(executor
                    .Run(batch.inputs(), std::vector<NamedResult>{{"loss", {loss.type(), loss.mutable_bytes()}},
                                                                  {"old", {type, old.mutable_bytes()}}})
                    .ok());
    EXPECT_EQ(old, ones);  // a result that is the state's old value, although the state is updated
    EXPECT_NEAR(loss.At(0), std::log(5.0), 1e-5);
    ASSERT_TRUE(executor.ReadState("w", {type, after.mutable_bytes()}).ok());
    EXPECT_LT(after.At(1), 1.1);
    EXPECT_NE(after, ones);
    EXPECT_EQ(executor.ResultOfLastRun("loss").status().code(), absl::StatusCode::kNotFound);
    ASSERT_TRUE(executor.Run(batch.inputs(), {}).ok());
    ASSERT_TRUE(executor.ResultOfLastRun("loss").ok());
    EXPECT_THAT(MessageOf(executor.ReadState("v", {type, after.mutable_bytes()})),
                HasSubstr("there is no state v; states are w, unused"));
    EXPECT_THAT(MessageOf(executor.AssignState("w", {TensorType{DType::kF32, {5, 3}}, after.bytes()})),
                HasSubstr("state w: expected f32[3,5], found f32[5,3]"));
  });
}

// The next value is computed before the last reader of the current one: it must not overwrite it yet.
TEST(State, IsKeptForReadersBehindItsNextValue) {
  constexpr char kLateReader[] = R"(
graph @late_reader(%x: f32[2,2], state %w: f32[2,2]) -> (y: f32[2,2], %w: f32[2,2]) {
  %w1 = matmul %w, %x : f32[2,2]
  %y = matmul %x, %w : f32[2,2]
  return %y, %w1
}
)";
  const absl::Status status = ForEachRank(1, [&](Communicator& communicator) -> absl::Status {
    const auto device = CreateHostDevice();
    ASSIGN_OR_RETURN(const auto executor, Load(kLateReader, communicator, *device));
    const Tensor x = Tensor::Of<float>({2, 2}, {0, 1, 2, 0}), w = Tensor::Of<float>({2, 2}, {1, 2, 3, 4});
    Tensor y(x.type()), next(x.type());
    RETURN_IF_ERROR(executor->AssignState("w", {w.type(), w.bytes()}));
    RETURN_IF_ERROR(executor->Run(std::vector<NamedInput>{{"x", {x.type(), x.bytes()}}},
                                  std::vector<NamedResult>{{"y", {y.type(), y.mutable_bytes()}}}));
    RETURN_IF_ERROR(executor->ReadState("w", {next.type(), next.mutable_bytes()}));
    EXPECT_EQ(y, Tensor::Of<float>({2, 2}, {3, 4, 2, 4}));
    EXPECT_EQ(next, Tensor::Of<float>({2, 2}, {4, 1, 8, 3}));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// The all_reduce overwrites its operand, which another collective may still read.
TEST(Ranks, AReductionInPlaceWaitsForTheOthersThatReadItsOperand) {
  constexpr char kTwice[] = R"(
mesh {data=2}
local graph @twice(%x: f32[2,2] split(1)) -> (slice: f32[1] split(0), whole: f32[2]) {
  %y = reduce_sum %x {dims=[1]} : f32[2] partial(sum)
  %slice = reduce_scatter %y {axis=data, dim=0, kind=sum} : f32[1] split(0)
  %whole = all_reduce %y {axis=data, bucket=0, kind=sum} : f32[2]
  return %slice, %whole
}
)";
  const absl::StatusOr<Graph> graph = ParseGraph(kTwice);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto backend = CreateBackend("cpu");
  ASSERT_TRUE(backend.ok()) << backend.status();
  CompileOptions options;
  options.optimize = false;
  const Tensor first = Tensor::Of<float>({2, 2}, {1, 2, 3, 4}), second = Tensor::Of<float>({2, 2}, {10, 20, 30, 40});
  const auto results = RunInProcess(*graph, **backend, {{first}, {second}}, options);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0][0], Tensor::Of<float>({1}, {33}));
  EXPECT_EQ((*results)[1][0], Tensor::Of<float>({1}, {77}));
  for (const auto& of_rank : *results) EXPECT_EQ(of_rank[1], Tensor::Of<float>({2}, {33, 77}));
}

TEST(Ranks, AFailureOnOneRankReachesAll) {
  const auto all = StatusOfEach(3, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(StepFor(3), communicator, device));
    Batch batch(4);
    RETURN_IF_ERROR(executor->Run(batch.inputs(), {}));
    if (communicator.rank() == 1) batch.y.mutable_data<int64_t>()[0] = -1;
    return executor->Run(batch.inputs(), {});
  });
  EXPECT_THAT(MessageOf(all[1]), HasSubstr("label -1"));
  for (size_t rank : {0, 2}) {
    EXPECT_FALSE(all[rank].ok());
    EXPECT_THAT(MessageOf(all[rank]), HasSubstr("rank 1"));
  }
}

// The executor aborts by itself, whatever its caller does with the error.
TEST(Ranks, AFailedRunTellsThePeersItsReason) {
  std::vector<absl::Status> runs(3);
  const auto load_and_run = [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(StepFor(3), communicator, device));
    Batch batch(4);
    if (communicator.rank() == 1) batch.y.mutable_data<int64_t>()[0] = -1;
    return executor->Run(batch.inputs(), {});
  };
  const auto all = StatusOfEach(3, [&](Communicator& communicator, Device& device) {
    runs[static_cast<size_t>(communicator.rank())] = load_and_run(communicator, device);
    return absl::OkStatus();  // returning the error would make ForEachRank abort
  });
  for (size_t rank : {0, 1, 2}) {
    EXPECT_TRUE(all[rank].ok()) << all[rank];
    EXPECT_FALSE(runs[rank].ok());
    EXPECT_THAT(MessageOf(runs[rank]), HasSubstr("label -1")) << runs[rank];
  }
}

TEST(Ranks, DifferentProgramsAreRefusedAtLoad) {
  const auto all = StatusOfEach(2, [](Communicator& communicator, Device& device) {
    const bool wider = communicator.rank() == 1;
    return Load(wider ? WithAll(kStep, ",5]", ",6]") : kStep, communicator, device).status();
  });
  for (const absl::Status& status : all) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status), HasSubstr("on rank 1")) << status;
  }
}

// The collectives are equal, so nothing would hang, but the replicas would diverge.
TEST(Ranks, ProgramsThatDifferInAnAttributeAreRefusedAtLoad) {
  const auto all = StatusOfEach(2, [](Communicator& communicator, Device& device) {
    const bool faster = communicator.rank() == 1;
    return Load(faster ? WithAll(kStep, "learning_rate=0.1", "learning_rate=0.2") : kStep, communicator, device)
        .status();
  });
  for (const absl::Status& status : all) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status), HasSubstr("different versions of the program @step")) << status;
  }
}

TEST(Ranks, WhatAllHaveFoundAtLoadLeavesTheCommunicatorUsable) {
  const auto all = StatusOfEach(3, [](Communicator& communicator, Device& device) -> absl::Status {
    // Compiled for another number of ranks: on all ranks, and on one alone.
    for (const bool is_on_all : {true, false}) {
      const bool is_wrong = is_on_all || communicator.rank() == 1;
      CompileOptions options;
      options.mesh = Mesh({{"data", is_wrong ? 4 : 3}});
      const absl::Status status = Load(StepFor(12), communicator, device, options).status();
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(MessageOf(status), HasSubstr("is compiled for 4 ranks (mesh {data=4}), and the communicator has 3"));
      EXPECT_EQ(MessageOf(status).find("rank 1 on host") == 0, !is_wrong) << status;
    }
    const bool faster = communicator.rank() == 1;
    EXPECT_FALSE(
        Load(faster ? WithAll(StepFor(3), "learning_rate=0.1", "learning_rate=0.2") : StepFor(3), communicator, device)
            .ok());
    ASSIGN_OR_RETURN(const auto executor, Load(StepFor(3), communicator, device));
    return executor->Run(Batch(4).inputs(), {});
  });
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
}

TEST(Ranks, WhatOneRankMeetsAllHearOf) {
  const auto all = StatusOfEach(3, [](Communicator& communicator, Device&) -> absl::Status {
    EXPECT_TRUE(AgreeOnSuccess(communicator, "nothing", absl::OkStatus()).ok());
    const absl::Status own = communicator.rank() == 1 ? absl::NotFoundError("no bread") : absl::OkStatus();
    const absl::Status status = AgreeOnSuccess(communicator, "bread", own);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(MessageOf(status),
              communicator.rank() == 1 ? "no bread" : "rank 1 on host " + communicator.host(1) + " gave up: no bread");
    return communicator.Barrier("after");
  });
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
}

TEST(Ranks, OfALongLineThePartAroundTheDifferenceIsShown) {
  const auto agree = [](const std::string& before, const std::string& after) {
    return StatusOfEach(2, [&](Communicator& communicator, Device&) {
      const std::string text = "same\n" + before + (communicator.rank() == 1 ? "B" : "A") + after;
      return AgreeOnText(communicator, "list", text);
    })[0];
  };
  EXPECT_THAT(MessageOf(agree("short ", "")), HasSubstr("in line 2:\n  on rank 0: short A\n  on rank 1: short B"));
  const std::string x(80, 'x'), y(159, 'y');
  EXPECT_THAT(MessageOf(agree(std::string(920, '-') + x, y + std::string(1000, '-'))),
              HasSubstr("\n  on rank 0: …" + x + "A" + y + "…\n  on rank 1: …" + x + "B" + y + "…"));
  // Characters are not cut.
  std::string accents;
  for (int i = 0; i < 500; ++i) accents += "é";
  for (const char* shift : {"", "-"}) {
    const std::string message(MessageOf(agree(accents, shift + accents)));
    EXPECT_THAT(message, HasSubstr("on rank 0: …é"));
    EXPECT_THAT(message, HasSubstr("é…\n  on rank 1: …é"));
  }
}

// Calls f while another thread uses the communicator.
void WhenInUse(Communicator& communicator, const std::function<void()>& f) {
  std::barrier steps(2);
  std::thread other([&] {
    const ExclusiveUse use(communicator.in_use());
    EXPECT_TRUE(use.ok());
    steps.arrive_and_wait();  // in use
    steps.arrive_and_wait();  // no longer needed
  });
  steps.arrive_and_wait();
  f();
  steps.arrive_and_wait();
  other.join();
}

TEST(Ranks, ACallWhileAnotherThreadUsesTheCommunicatorIsRefused) {
  const auto all = StatusOfEach(2, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(StepFor(2), communicator, device));
    Tensor w(TensorType{DType::kF32, {3, 5}});
    const Tensor ones = Tensor::Full(w.type(), 1);
    WhenInUse(communicator, [&] {
      const std::vector<absl::Status> refused = {
          executor->Run(Batch(4).inputs(), {}),
          executor->AssignState("w", {w.type(), ones.bytes()}),
          executor->ReadState("w", {w.type(), w.mutable_bytes()}),
          CheckReplicas(*executor, communicator),
          Load(StepFor(2), communicator, device).status(),
      };
      for (const absl::Status& status : refused) {
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_THAT(MessageOf(status), HasSubstr("in use by another thread"));
      }
    });
    RETURN_IF_ERROR(executor->ReadState("w", {w.type(), w.mutable_bytes()}));
    EXPECT_EQ(w, Tensor(w.type()));  // not assigned
    {                                // a caller that holds it for several calls, on the thread that makes them
      const ExclusiveUse use(communicator.in_use());
      EXPECT_TRUE(use.ok());
      RETURN_IF_ERROR(executor->AssignState("w", {w.type(), ones.bytes()}));
      RETURN_IF_ERROR(executor->ReadState("w", {w.type(), w.mutable_bytes()}));
      RETURN_IF_ERROR(CheckReplicas(*executor, communicator));
    }
    EXPECT_EQ(w, ones);
    return executor->Run(Batch(4).inputs(), {});
  });
  for (const absl::Status& status : all) EXPECT_TRUE(status.ok()) << status;
}

TEST(Ranks, AReplicaThatDiffersIsNamed) {
  const auto all = StatusOfEach(3, [](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto executor, Load(StepFor(3), communicator, device));
    Tensor w = Tensor::Full({DType::kF32, {3, 5}}, 1.0);
    RETURN_IF_ERROR(executor->AssignState("w", {w.type(), w.bytes()}));
    RETURN_IF_ERROR(executor->Run(Batch(4).inputs(), {}));
    EXPECT_TRUE(CheckReplicas(*executor, communicator).ok());
    if (communicator.rank() == 2) {  // changes its last bit
      RETURN_IF_ERROR(executor->ReadState("w", {w.type(), w.mutable_bytes()}));
      w.mutable_bytes()[w.num_bytes() - 4] ^= std::byte{1};
      RETURN_IF_ERROR(executor->AssignState("w", {w.type(), w.bytes()}));
    }
    return CheckReplicas(*executor, communicator);
  });
  for (const absl::Status& status : all) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status), HasSubstr("state w (f32[3,5]) differs between rank 0 and rank 2")) << status;
  }
}

}  // namespace
}  // namespace lockstep
