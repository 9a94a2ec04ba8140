// Compiled pipelines: each rank, a thread, compiles its own part of the step, and all together compute what one rank
// computes with the same micro-batches. stages_test.cc checks the same on the interpreter.

#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/compile.h"
#include "backends/run_in_process.h"
#include "core/local_part.h"
#include "core/printer.h"
#include "core/random_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "passes/training/train_step.h"
#include "passes/training/training_mode.h"
#include "runtime/execution/agreement.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/whole_state.h"
#include "test/distributed/models.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int kSteps = 3;

passes::TrainStepSpec Momentum() {
  passes::TrainStepSpec spec;
  spec.optimizer = {"SGD", {{"learning_rate", 0.5}, {"momentum", 0.9}}};
  return spec;
}

Graph CompiledStep(std::string_view model, int64_t micro_batches, passes::TrainStepSpec spec = Momentum()) {
  Graph step = ParseGraph(model).value();
  EXPECT_TRUE(passes::RunPasses({passes::TrainingMode()}, step).ok());
  spec.accumulate = micro_batches;
  const absl::Status made = passes::MakeTrainStep(step, spec);
  EXPECT_TRUE(made.ok()) << made;
  return step;
}

// Values that do not depend on the mesh: of the states before the first step, and of the inputs of each step.
Tensor ValueOf(const Input& input, int number) {
  std::mt19937_64 random(std::hash<std::string>()(input.name()) + static_cast<uint64_t>(number));
  const TensorType& type = input.value.type();
  const bool starts_at_zero = input.is_state && input.name().find('/') != std::string::npos;
  if (starts_at_zero) return Tensor(type);
  return IsFloat(type.dtype) ? RandomTensor(type, random, -0.5, 0.5) : RandomTensor(type, random, 0, 2);
}

// The results of one rank after some steps: the losses, its own states and, on rank 0, all states as wholes.
struct CompiledHistory {
  std::vector<double> losses;
  std::map<std::string, Tensor> own, whole;
  uint64_t state_bytes = 0, all_bytes = 0;  // all_bytes includes the arena and buckets
};

absl::StatusOr<std::unique_ptr<Executor>> Load(const Graph& step, CompileOptions options, Communicator& communicator,
                                               Device& device) {
  ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
  options.rank = communicator.rank();
  ASSIGN_OR_RETURN(Executable executable, Compile(step.Clone(), *backend, options));
  return Executor::Load(std::move(executable), &communicator, &device);
}

absl::StatusOr<CompiledHistory> Train(const Graph& step, const CompileOptions& options, Communicator& communicator,
                                      int steps) {
  ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
  ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(communicator));
  ASSIGN_OR_RETURN(const auto executor, Load(step, options, communicator, *opened.device));
  const Executable& executable = executor->executable();
  for (const Input& input : step.inputs()) {
    if (!input.is_state) continue;
    const Tensor value = ValueOf(input, 0);
    RETURN_IF_ERROR(executor->AssignState(input.name(), {value.type(), value.bytes()}));
  }
  CompiledHistory history;
  for (int number = 0; number < steps; ++number) {
    std::vector<Tensor> parts;
    std::vector<NamedInput> inputs;
    parts.reserve(step.inputs().size());
    for (const Input& input : step.inputs()) {
      if (!input.is_data()) continue;
      parts.push_back(LocalPart(ValueOf(input, number), input.placements(), executable.mesh, communicator.rank()));
      inputs.push_back({input.name(), {parts.back().type(), parts.back().bytes()}});
    }
    Tensor loss(TensorType{DType::kF32, {}});
    RETURN_IF_ERROR(executor->Run(inputs, std::vector<NamedResult>{{"loss", {loss.type(), loss.mutable_bytes()}}}));
    history.losses.push_back(loss.At(0));
  }
  for (const ValueInfo& state : executable.states) {
    if (state.is_here()) {
      Tensor& value = history.own.emplace(state.name, state.local_type).first->second;
      RETURN_IF_ERROR(executor->ReadState(state.name, {value.type(), value.mutable_bytes()}));
    }
    Tensor whole(state.global_type);
    const bool is_first = communicator.rank() == 0;
    RETURN_IF_ERROR(ReadWholeState(*executor, communicator, state.name,
                                   {whole.type(), is_first ? whole.mutable_bytes() : nullptr}));
    if (is_first) history.whole.emplace(state.name, whole);
  }
  history.state_bytes = executable.BytesOf(BufferKind::kState);
  history.all_bytes =
      history.state_bytes + executable.BytesOf(BufferKind::kArena) + executable.BytesOf(BufferKind::kRegistered);
  RETURN_IF_ERROR(CheckReplicas(*executor, communicator));
  return history;
}

std::vector<CompiledHistory> TrainOn(const Graph& step, const Mesh& mesh, CompileOptions options = {},
                                     int steps = kSteps) {
  options.mesh = mesh;
  std::vector<CompiledHistory> of_ranks(static_cast<size_t>(mesh.num_ranks()));
  const absl::Status status = ForEachRank(static_cast<int>(of_ranks.size()), [&](Communicator& communicator) {
    absl::StatusOr<CompiledHistory> history = Train(step, options, communicator, steps);
    if (history.ok()) of_ranks[static_cast<size_t>(communicator.rank())] = *std::move(history);
    return history.status();
  });
  EXPECT_TRUE(status.ok()) << status;
  return of_ranks;
}

void ExpectCompiledNear(const std::map<std::string, Tensor>& found, const std::map<std::string, Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_EQ(found.at(name).type(), value.type()) << name;
    for (int64_t i = 0; i < value.num_elements(); ++i)
      EXPECT_NEAR(found.at(name).At(i), value.At(i), 3e-5) << name << ", element " << i;
  }
}

// Compares every rank of each mesh with one rank. Each state is on one stage.
void ExpectCompiledAsOnOneRank(const Graph& step, const std::vector<Mesh>& meshes, const CompileOptions& options = {}) {
  const CompiledHistory one = TrainOn(step, Mesh())[0];
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_NE(one.losses.front(), one.losses.back());
  for (const Mesh& mesh : meshes) {
    SCOPED_TRACE(mesh.ToString());
    const std::vector<CompiledHistory> found = TrainOn(step, mesh, options);
    std::map<std::string, std::set<int64_t>> stages_of;  // by the name of the state
    for (size_t rank = 0; rank < found.size(); ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      ASSERT_EQ(found[rank].losses.size(), one.losses.size());
      EXPECT_EQ(found[rank].losses, found[0].losses);
      for (size_t s = 0; s < one.losses.size(); ++s) EXPECT_NEAR(found[rank].losses[s], one.losses[s], 3e-5) << s;
      for (const auto& [name, value] : found[rank].own)
        stages_of[name].insert(mesh.Coordinate(static_cast<int64_t>(rank), "stage"));
    }
    EXPECT_EQ(stages_of.size(), one.whole.size());
    for (const auto& [name, stages] : stages_of) EXPECT_EQ(stages.size(), 1U) << name;
    ExpectCompiledNear(found[0].whole, one.whole);
  }
}

std::vector<Mesh> MeshesOf(std::vector<int64_t> stages) {
  std::vector<Mesh> meshes;
  for (int64_t each : stages) meshes.push_back(Mesh({{"stage", each}}));
  return meshes;
}

TEST(CompiledStages, TrainAsOneRankDoes) {
  for (int64_t micro_batches : {1, 2, 6}) {
    SCOPED_TRACE(micro_batches);
    std::vector<Mesh> meshes = MeshesOf({2, 3, 4});
    if (micro_batches == 2) meshes.push_back(Mesh({{"data", 2}, {"stage", 3}}));
    if (micro_batches == 6) meshes.push_back(Mesh({{"stage", 2}, {"data", 2}}));
    ExpectCompiledAsOnOneRank(CompiledStep(kDeep, micro_batches), meshes);
  }
  ExpectCompiledAsOnOneRank(CompiledStep(kMlp, 3), {Mesh({{"stage", 2}}), Mesh({{"data", 2}, {"stage", 2}})});
}

TEST(CompiledStages, DoSoWithOtherModels) {
  ExpectCompiledAsOnOneRank(CompiledStep(kConvNet, 3), MeshesOf({2, 4}));  // its statistics are per micro-batch
  ExpectCompiledAsOnOneRank(CompiledStep(kEmbedding, 2), {Mesh({{"data", 2}, {"stage", 2}})});
  ExpectCompiledAsOnOneRank(CompiledStep(kRecurrent, 2), MeshesOf({2, 3}));
  ExpectCompiledAsOnOneRank(CompiledStep(kDropouts, 3), {Mesh({{"stage", 3}}), Mesh({{"data", 2}, {"stage", 2}})});
}

// Replicas add up the number of labels that count.
TEST(CompiledStages, DoSoWithLabelsThatAreNotCounted) {
  passes::TrainStepSpec spec = Momentum();
  spec.losses[0].options = {{"ignore_index", int64_t{1}}};
  ExpectCompiledAsOnOneRank(CompiledStep(kMlp, 3, spec), {Mesh({{"data", 2}, {"stage", 2}})});
}

// Norms of all stages' gradients, averages of their states, and an optimizer per group.
TEST(CompiledStages, DoSoWithClippingAveragesAndOptimizers) {
  passes::TrainStepSpec spec = Momentum();
  spec.clipping = {"global_norm", 0.01};
  spec.average = true;
  ExpectCompiledAsOnOneRank(CompiledStep(kDeep, 3, spec), {Mesh({{"data", 2}, {"stage", 3}})});
  passes::TrainStepSpec adam;
  adam.optimizer = {"AdamW", {{"learning_rate", 0.01}}};
  ExpectCompiledAsOnOneRank(CompiledStep(kDeep, 3, adam), {Mesh({{"data", 2}, {"stage", 2}})});
}

// Optimization passes, small buckets and little memory do not change the results.
TEST(CompiledStages, DoSoWithOtherOptions) {
  const Graph step = CompiledStep(kDeep, 3);
  const std::vector<Mesh> meshes = {Mesh({{"data", 2}, {"stage", 2}})};
  CompileOptions plain;
  plain.optimize = false;
  ExpectCompiledAsOnOneRank(step, meshes, plain);
  CompileOptions small;
  small.bucket_bytes = 64;
  ExpectCompiledAsOnOneRank(step, meshes, small);
}

// With equal kernels, the bits are equal.
TEST(CompiledStages, HaveTheSameBitsForAnyNumberOfStages) {
  const Graph step = CompiledStep(kMlp, 3);
  const std::vector<CompiledHistory> two = TrainOn(step, Mesh({{"stage", 2}})),
                                     three = TrainOn(step, Mesh({{"stage", 3}}));
  EXPECT_EQ(two[0].losses, three[0].losses);
  for (const auto& [name, value] : two[0].whole) EXPECT_TRUE(value == three[0].whole.at(name)) << name;
}

// A stage has only its own states, and its memory in use does not grow with the number of micro-batches.
TEST(CompiledStages, NeedTheMemoryOfAStage) {
  const std::vector<CompiledHistory> one = TrainOn(CompiledStep(kDeep, 6), Mesh(), {}, 1);
  const std::vector<CompiledHistory> three = TrainOn(CompiledStep(kDeep, 6), Mesh({{"stage", 3}}), {}, 1);
  uint64_t bytes = 0;
  for (const CompiledHistory& of_rank : three) {
    bytes += of_rank.state_bytes;
    EXPECT_LT(of_rank.state_bytes, one[0].state_bytes);
  }
  EXPECT_EQ(bytes, one[0].state_bytes);
  const std::string wide = R"(
graph @wide(%x: f32[BATCH,64] split(0), state %w: f32[64,64], state %v: f32[64,64], state %z: f32[64,3]) -> (logits: f32[BATCH,3] split(0)) {
  %h1 = matmul %x, %w : f32[BATCH,64]
  %a1 = tanh %h1 : f32[BATCH,64]
  %h2 = matmul %a1, %v : f32[BATCH,64]
  %a2 = tanh %h2 : f32[BATCH,64]
  %y  = matmul %a2, %z : f32[BATCH,3]
  return %y
}
)";
  const auto bytes_of = [&](int64_t micro_batches) {
    std::string text = wide;
    const std::string batch = std::to_string(16 * micro_batches);
    for (size_t at; (at = text.find("BATCH")) != std::string::npos;) text.replace(at, 5, batch);
    return TrainOn(CompiledStep(text, micro_batches), Mesh({{"stage", 2}}), {}, 1);
  };
  const std::vector<CompiledHistory> few = bytes_of(4), many = bytes_of(16);
  // The copy of the batch that is cut, on the stage that reads it.
  constexpr uint64_t kCopyOfBatch = (16 - 4) * 16 * 64 * 4;
  EXPECT_LT(many[0].all_bytes, few[0].all_bytes * 11 / 10 + kCopyOfBatch);
  EXPECT_LT(many[1].all_bytes, few[1].all_bytes * 11 / 10);
}

// Each rank of a pipeline is late once; the others wait for it and continue.
TEST(CompiledStages, WaitForLateRanks) {
  const Graph step = CompiledStep(kDeep, 6);
  CompileOptions options;
  options.mesh = Mesh({{"stage", 3}});
  const absl::Status status = ForEachRank(3, [&](Communicator& communicator) -> absl::Status {
    ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
    ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(communicator));
    ASSIGN_OR_RETURN(const auto executor, Load(step, options, communicator, *opened.device));
    for (int late = 0; late < 3; ++late) {
      std::vector<Tensor> values;
      std::vector<NamedInput> inputs;
      values.reserve(step.inputs().size());
      for (const Input& input : step.inputs()) {
        if (!input.is_data()) continue;
        values.push_back(ValueOf(input, late));
        inputs.push_back({input.name(), {values.back().type(), values.back().bytes()}});
      }
      if (communicator.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      RETURN_IF_ERROR(executor->Run(inputs, {}));
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// The status that the ranks of a mesh of two stages get if each loads its own step.
absl::Status LoadTwo(const Graph& of_first, const Graph& of_second) {
  CompileOptions options;
  options.mesh = Mesh({{"stage", 2}});
  return ForEachRank(2, [&](Communicator& communicator) -> absl::Status {
    ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
    ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(communicator));
    return Load(communicator.rank() == 0 ? of_first : of_second, options, communicator, *opened.device).status();
  });
}

TEST(CompiledStages, ComparePrograms) {
  const absl::Status status = LoadTwo(CompiledStep(kDeep, 3), CompiledStep(kDeep, 2));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ranks have different versions of the program @deep"));
}

TEST(CompiledStages, SayWhereAStateIs) {
  const Graph step = CompiledStep(kDeep, 2);
  CompileOptions options;
  options.mesh = Mesh({{"stage", 2}});
  const absl::Status status = ForEachRank(2, [&](Communicator& communicator) -> absl::Status {
    ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
    ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(communicator));
    ASSIGN_OR_RETURN(const auto executor, Load(step, options, communicator, *opened.device));
    for (const ValueInfo& state : executor->executable().states) {
      Tensor value(state.local_type);
      const absl::Status read = executor->ReadState(state.name, {value.type(), value.mutable_bytes()});
      EXPECT_EQ(read.ok(), state.is_here()) << read;
      const std::string here = std::to_string(communicator.rank()), there = std::to_string(1 - communicator.rank());
      if (state.is_here()) continue;
      EXPECT_THAT(std::string(read.message()),
                  HasSubstr("state " + state.name + " is not on this rank, " + here + ", which is stage " + here +
                            ": only the ranks of stage " + there + " have it"));
      EXPECT_EQ(executor->BindState(state.name, {value.type(), value.mutable_bytes()}, true).message(), read.message());
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// Ranks assign the states that they have. A state of another stage need not be assigned; all replicas of a stage must
// assign theirs.
TEST(CompiledStages, CompareWhatWasAssigned) {
  const Graph step = CompiledStep(kMlp, 2);
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}, {"stage", 2}});  // ranks 1 and 3 are stage 1, which has w2
  const auto run_after_assignment_by = [&](const std::set<int>& ranks) {
    return ForEachRank(4, [&](Communicator& communicator) -> absl::Status {
      ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
      ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(communicator));
      ASSIGN_OR_RETURN(const auto executor, Load(step, options, communicator, *opened.device));
      const Tensor w2(step.FindInput("w2")->value.type());
      if (ranks.contains(communicator.rank())) RETURN_IF_ERROR(executor->AssignState("w2", {w2.type(), w2.bytes()}));
      std::vector<Tensor> tensors;
      for (const ValueInfo& info : executor->executable().inputs) tensors.emplace_back(info.local_type);
      std::vector<NamedInput> inputs;
      for (size_t i = 0; i < tensors.size(); ++i)
        inputs.push_back({executor->executable().inputs[i].name, {tensors[i].type(), tensors[i].bytes()}});
      return executor->Run(inputs, {});
    });
  };
  EXPECT_TRUE(run_after_assignment_by({1, 3}).ok());
  EXPECT_TRUE(run_after_assignment_by({0, 1, 2, 3}).ok());
  const absl::Status status = run_after_assignment_by({3});
  EXPECT_THAT(std::string(status.message()), HasSubstr("assigned"));
}

// Layers with the names of a model file. The last layer's labels may be out of range.
constexpr std::string_view kNamed = R"(
graph @named(%x: f32[12,6] split(0), state %fc1.weight: f32[6,6], state %fc2.weight: f32[6,6], state %fc3.weight: f32[6,3]) -> (logits: f32[12,3] split(0)) {
  %h1 = matmul %x, %fc1.weight : f32[12,6] @"onnx:/fc1/MatMul"
  %a1 = tanh %h1 : f32[12,6] @"onnx:/fc1/Tanh"
  %h2 = matmul %a1, %fc2.weight : f32[12,6] @"onnx:/fc2/MatMul"
  %a2 = tanh %h2 : f32[12,6] @"onnx:/fc2/Tanh"
  %y  = matmul %a2, %fc3.weight : f32[12,3] @"onnx:/fc3/MatMul"
  return %y
}
)";

// The messages of all ranks when one rank gives up before its second call or gets a label out of range.
std::vector<std::string> MessagesOf(const Mesh& mesh, int culprit, bool bad_label) {
  passes::TrainStepSpec spec = Momentum();
  spec.clipping = {"global_norm", 0.5};
  const Graph step = CompiledStep(kNamed, 2, spec);
  CompileOptions options;
  options.mesh = mesh;
  std::vector<absl::Status> all;
  const absl::Status status = ForEachRank(
      static_cast<int>(mesh.num_ranks()),
      [&](Communicator& communicator) -> absl::Status {
        ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
        ASSIGN_OR_RETURN(const RankDevice opened, backend->OpenDevice(communicator));
        ASSIGN_OR_RETURN(const auto executor, Load(step, options, communicator, *opened.device));
        for (int call = 0; call < 3; ++call) {
          const bool fails = call == 1 && communicator.rank() == culprit;
          if (fails && !bad_label) {
            communicator.Abort(InvalidArgument() << "no more data");  // before it leaves the executor's communicators
            return absl::OkStatus();
          }
          std::vector<Tensor> values;
          std::vector<NamedInput> inputs;
          for (const ValueInfo& info : executor->executable().inputs) values.emplace_back(info.local_type);
          for (size_t i = 0; i < values.size(); ++i) {
            if (fails && values[i].dtype() == DType::kI64) values[i].mutable_data<int64_t>()[0] = 7;
            inputs.push_back({executor->executable().inputs[i].name, {values[i].type(), values[i].bytes()}});
          }
          RETURN_IF_ERROR(executor->Run(inputs, {}));
        }
        return absl::OkStatus();
      },
      &all);
  EXPECT_FALSE(status.ok());
  std::vector<std::string> messages;
  for (const absl::Status& each : all) messages.emplace_back(each.message());
  return messages;
}

// Messages use ranks, stages and names of the model. They contain no values that passes made and no ops of a transfer.
void ExpectInWordsOfTheUser(const std::string& message) {
  EXPECT_THAT(message, testing::Not(HasSubstr("%")));
  EXPECT_THAT(message, testing::Not(HasSubstr("permute")));
  EXPECT_THAT(message, testing::Not(HasSubstr("broadcast")));
  EXPECT_THAT(message, testing::Not(HasSubstr("micro-batches")));
}

TEST(CompiledStages, CallWhatMovesByNamesOfTheModel) {
  passes::TrainStepSpec spec = Momentum();
  spec.clipping = {"global_norm", 0.5};
  CompileOptions options;
  options.mesh = Mesh({{"stage", 2}, {"data", 2}});
  options.rank = 3;
  const auto executable = Compile(CompiledStep(kNamed, 2, spec), **CreateBackend("cpu"), options);
  ASSERT_TRUE(executable.ok()) << executable.status();
  std::set<std::string> names;
  for (const std::unique_ptr<Step>& step : executable->steps) {
    const std::optional<CollectiveInfo>& collective = step->info().collective;
    if (collective) names.insert(std::string(collective->name_in_messages()));
  }
  for (const std::string& name : names) ExpectInWordsOfTheUser(name);
  EXPECT_THAT(names, testing::IsSupersetOf({"stage 0 to 1, onnx:/fc2/Tanh, micro-batch 1 of 2",
                                            "stage 0 to 1, onnx:/fc2/Tanh, micro-batch 2 of 2",
                                            "stage 1 to 0, gradient of onnx:/fc3/MatMul, micro-batch 2 of 2",
                                            "gradient of fc3.weight, and result loss", "stage 1 to all, result loss"}));
}

TEST(CompiledStages, SayWhoFailedInWordsOfTheUser) {
  const std::vector<std::string> three = MessagesOf(Mesh({{"stage", 3}}), 1, false);
  for (size_t rank : {0U, 2U}) {
    ExpectInWordsOfTheUser(three[rank]);
    EXPECT_THAT(three[rank], HasSubstr("rank 1 (stage 1) on host "));
    EXPECT_THAT(three[rank], HasSubstr("gave up: no more data"));
  }
  const std::vector<std::string> replicas = MessagesOf(Mesh({{"stage", 2}, {"data", 2}}), 3, false);
  for (size_t rank : {0U, 1U, 2U}) {
    ExpectInWordsOfTheUser(replicas[rank]);
    EXPECT_THAT(replicas[rank], HasSubstr("rank 3 (stage 1) on host "));
  }
  const std::vector<std::string> label = MessagesOf(Mesh({{"stage", 2}}), 1, true);
  EXPECT_THAT(label[1], HasSubstr("stage 1 of @named, softmax_cross_entropy, at loss: "));
  EXPECT_THAT(label[0], HasSubstr("rank 1 (stage 1) on host "));
  for (const std::string& message : label) ExpectInWordsOfTheUser(message);
}

std::string CompileError(const Graph& step, CompileOptions options, std::optional<int64_t> rank = 0) {
  options.rank = rank;
  const auto backend = CreateBackend("cpu");
  return std::string(Compile(step.Clone(), **backend, options).status().message());
}

TEST(CompiledStages, RefuseWhatTheyCannotRun) {
  const Graph step = CompiledStep(kMlp, 2);
  CompileOptions two;
  two.mesh = Mesh({{"stage", 2}});
  EXPECT_EQ(CompileError(step, two), "");
  CompileOptions many;
  many.mesh = Mesh({{"stage", 40}});
  EXPECT_THAT(CompileError(step, many), HasSubstr("is to be cut into 40 stages, and has only "));
  EXPECT_THAT(CompileError(ParseGraph(kMlp).value(), two),
              HasSubstr("only a training step with an optimizer can be cut into stages"));
  EXPECT_THAT(CompileError(step, two, std::nullopt), HasSubstr("CompileOptions::rank"));
  EXPECT_THAT(CompileError(step, two, 2), HasSubstr("there is no rank 2"));
  EXPECT_THAT(CompileError(step, two, -1), HasSubstr("there is no rank -1"));
  Graph split = step.Clone();
  for (size_t i = 0; i < split.inputs().size(); ++i) {
    if (split.inputs()[i].name() == "w1") split.set_input_placements(i, {{"data", Placement::Split(1)}});
  }
  EXPECT_THAT(CompileError(split, two), HasSubstr("state w1 is split over ranks"));
  CompileOptions shared = two;
  shared.shared_weights = true;
  EXPECT_THAT(CompileError(step, shared), HasSubstr("shared_weights"));
  CompileOptions narrow = two;
  narrow.wire = "int8";
  EXPECT_THAT(CompileError(step, narrow), HasSubstr("wire=\"int8\""));
  CompileOptions measured = two;
  measured.measured.emplace();
  EXPECT_THAT(CompileError(step, measured), HasSubstr("buckets does not go with stages"));
  CompileOptions served = two;
  served.servers.emplace();
  EXPECT_THAT(CompileError(step, served), HasSubstr("parameter_server"));
}

}  // namespace
}  // namespace lockstep
