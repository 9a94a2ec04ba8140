// Training steps whose variables parameter servers update, with servers and workers as threads. They are compared bit
// by bit with all_reduce and with a step of one rank. Also tested are the bound on staleness, reading and assigning
// states, refused programs, and ranks that die.

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "backends/executor_test_support.h"
#include "backends/server_update.h"
#include "core/printer.h"
#include "core/random_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "passes/pass_table.h"
#include "runtime/comm/in_process.h"
#include "runtime/server/server_test_support.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kRows = 12;  // of a batch, divisible by 1, 2 and 3 workers
constexpr int kServerRuns = 4;
constexpr int64_t kCut = 40;  // elements; larger states are split over all servers

constexpr char kModel[] = R"(
graph @step(%x: f32[ROWS,6] split(0), state %w1: f32[6,10], state %b1: f32[10], state %w2: f32[10,4]) -> (logits: f32[ROWS,4] split(0)) {
  %z = matmul %x, %w1 : f32[ROWS,10]
  %b = broadcast %b1 {dims=[1], shape=[ROWS, 10]} : f32[ROWS,10]
  %a = add %z, %b : f32[ROWS,10]
  %h = tanh %a : f32[ROWS,10]
  %logits = matmul %h, %w2 : f32[ROWS,4]
  return %logits
}
)";

// Returns the step that the pass train-step makes of the model with the options `optimizer`.
Graph StepOf(const std::string& optimizer, int64_t rows = kRows) {
  absl::StatusOr<Graph> graph = ParseGraph(WithAll(kModel, "ROWS", std::to_string(rows)));
  LOCKSTEP_CHECK(graph.ok()) << graph.status();
  const auto passes = passes::PassesFromText("train-step{" + optimizer + "}");
  LOCKSTEP_CHECK(passes.ok()) << passes.status();
  const absl::Status status = passes::RunPasses(*passes, *graph);
  LOCKSTEP_CHECK(status.ok()) << status;
  return *std::move(graph);
}

constexpr char kMomentum[] = "optimizer=SGD, learning_rate=0.3, momentum=0.9";
constexpr char kAdam[] = "optimizer=Adam, learning_rate=0.05";

using States = std::map<std::string, Tensor>;

bool SameBits(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && std::equal(a.bytes(), a.bytes() + a.num_bytes(), b.bytes());
}

void ExpectSameBits(const States& a, const States& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(SameBits(value, b.at(name))) << name << " " << value.ToString() << " and " << b.at(name).ToString();
  }
}

// The inputs of a rank in a batch of kRows. They depend on `run`.
struct Inputs {
  Inputs(int run, int64_t begin, int64_t rows) : x(TensorType{DType::kF32, {rows, 6}}), y({DType::kI64, {rows}}) {
    std::mt19937_64 random(static_cast<uint64_t>(run));
    const Tensor all = RandomTensor({DType::kF32, {kRows, 6}}, random, -1, 1);
    for (int64_t i = 0; i < rows * 6; ++i)
      x.mutable_data<float>()[static_cast<size_t>(i)] = all.data<float>()[static_cast<size_t>(begin * 6 + i)];
    for (int64_t i = 0; i < rows; ++i) y.mutable_data<int64_t>()[static_cast<size_t>(i)] = (begin + i) % 4;
  }
  std::vector<NamedInput> named() const { return {{"x", {x.type(), x.bytes()}}, {"target", {y.type(), y.bytes()}}}; }
  Tensor x, y;
};

absl::Status AssignFirst(Executor& executor) {
  int number = 0;
  for (const char* name : {"w1", "b1", "w2"}) {
    std::mt19937_64 random(static_cast<uint64_t>(100 + ++number));
    for (const ValueInfo& state : executor.executable().states) {
      if (state.name != name) continue;
      const Tensor value = RandomTensor(state.local_type, random, -0.5, 0.5);
      RETURN_IF_ERROR(executor.AssignState(name, {value.type(), value.bytes()}));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<States> Read(Executor& executor) {
  States states;
  for (const ValueInfo& state : executor.executable().states) {
    Tensor value(state.local_type);
    RETURN_IF_ERROR(executor.ReadState(state.name, {value.type(), value.mutable_bytes()}));
    states.emplace(state.name, std::move(value));
  }
  return states;
}

absl::Status AssignOnRanks(Executor& executor, const States& states) {
  for (const auto& [name, value] : states) RETURN_IF_ERROR(executor.AssignState(name, {value.type(), value.bytes()}));
  return absl::OkStatus();
}

// Each server compiles on its own thread.
MakeUpdate UpdatesOfServers() {
  return [](const std::string& text, const TensorType& type) -> absl::StatusOr<std::unique_ptr<Update>> {
    thread_local absl::StatusOr<MakeUpdate> make = MakeCompiledUpdates();
    RETURN_IF_ERROR(make.status());
    return (*make)(text, type);
  };
}

passes::ServerOptions Synchronous() { return {.bigarray_bound = kCut}; }
passes::ServerOptions Asynchronous(int64_t max_staleness = -1) {
  return {.synchronous = false, .max_staleness = max_staleness, .bigarray_bound = kCut};
}

// Loads a worker's step of a program whose variables servers update, or of one without servers.
absl::StatusOr<std::unique_ptr<Executor>> LoadStep(const Graph& graph, Communicator& communicator, Device& device,
                                                   std::optional<passes::ServerOptions> servers, ServerClient* client) {
  CompileOptions options;
  if (!servers || servers->synchronous) options.mesh = Mesh({{"data", communicator.size()}});
  options.servers = std::move(servers);
  ASSIGN_OR_RETURN(const auto backend, CreateBackend("cpu"));
  ASSIGN_OR_RETURN(Executable executable, Compile(graph.Clone(), *backend, options));
  return Executor::Load(std::move(executable), &communicator, &device, {.servers = client});
}

absl::Status TrainByServers(Executor& executor, int begin, int end, int rank, int ranks) {
  const int64_t rows = kRows / ranks;
  for (int run = begin; run < end; ++run) {
    const Inputs inputs(run, rank * rows, rows);
    RETURN_IF_ERROR(executor.Run(inputs.named(), {}));
  }
  return absl::OkStatus();
}

using OnWorker = std::function<absl::Status(Executor& executor, int rank)>;

// Loads a synchronous step on each worker of a job, and calls f.
void OnWorkers(const Graph& graph, int workers, int servers, const OnWorker& f, bool shares_memory = true) {
  ServersInProcess job(
      {.servers = servers, .workers = workers, .shares_memory = shares_memory, .make_update = UpdatesOfServers()});
  std::atomic<int> ran = 0;
  for (const absl::Status& status : StatusOfEach(workers, [&](Communicator& communicator, Device& device) {
         const auto client = job.Connect(communicator.rank());
         absl::StatusOr<std::unique_ptr<Executor>> executor =
             LoadStep(graph, communicator, device, Synchronous(), client.get());
         RETURN_IF_ERROR(executor.status());
         ++ran;
         return f(**executor, communicator.rank());
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(ran, workers);
}

// Trains without servers, and returns the states after some runs.
States WithAllReduce(const Graph& graph, int workers, int runs = kServerRuns) {
  States states;
  for (const absl::Status& status : StatusOfEach(workers, [&](Communicator& communicator, Device& device) {
         ASSIGN_OR_RETURN(const auto executor, LoadStep(graph, communicator, device, std::nullopt, nullptr));
         RETURN_IF_ERROR(AssignFirst(*executor));
         RETURN_IF_ERROR(TrainByServers(*executor, 0, runs, communicator.rank(), workers));
         ASSIGN_OR_RETURN(States own, Read(*executor));
         if (communicator.rank() == 0) states = std::move(own);
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  return states;
}

// --- Synchronous ----------------------------------------------------------------------------------------------------

class SynchronousTest : public testing::TestWithParam<std::tuple<const char*, int, int>> {};

TEST_P(SynchronousTest, ServersComputeTheBitsOfAllReduce) {
  const auto& [optimizer, workers, servers] = GetParam();
  const Graph graph = StepOf(optimizer);
  const States expected = WithAllReduce(graph, workers);
  EXPECT_EQ(expected.size(), optimizer == kAdam ? 10u : 6u);
  OnWorkers(graph, workers, servers, [&, workers = workers](Executor& executor, int rank) -> absl::Status {
    RETURN_IF_ERROR(AssignFirst(executor));
    RETURN_IF_ERROR(TrainByServers(executor, 0, kServerRuns, rank, workers));
    ASSIGN_OR_RETURN(const States states, Read(executor));
    ExpectSameBits(states, expected);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Jobs, SynchronousTest,
                         testing::Values(std::tuple(kMomentum, 1, 2), std::tuple(kMomentum, 2, 1),
                                         std::tuple(kMomentum, 3, 2), std::tuple(kAdam, 1, 1), std::tuple(kAdam, 2, 2),
                                         std::tuple(kAdam, 3, 1)));

// An optimizer that does not work element by element, whose variables are each on one server whatever their size;
// values travel over TCP.
TEST(ParameterServer, WholeArraysAndSocketsGiveTheSameBits) {
  const Graph graph = StepOf("optimizer=LAMB, learning_rate=0.05");
  const States expected = WithAllReduce(graph, 2);
  OnWorkers(
      graph, 2, 2,
      [&](Executor& executor, int rank) -> absl::Status {
        EXPECT_GT(executor.executable().served.front().bigarray_bound, kCut);
        RETURN_IF_ERROR(AssignFirst(executor));
        RETURN_IF_ERROR(TrainByServers(executor, 0, kServerRuns, rank, 2));
        ASSIGN_OR_RETURN(const States states, Read(executor));
        ExpectSameBits(states, expected);
        return absl::OkStatus();
      },
      /*shares_memory=*/false);
}

TEST(ParameterServer, SettingsReachTheServers) {
  const Graph graph = StepOf(kMomentum);
  States expected;
  const auto train = [](Executor& executor, int rank) -> absl::Status {
    RETURN_IF_ERROR(AssignFirst(executor));
    for (int run = 0; run < kServerRuns; ++run) {
      RETURN_IF_ERROR(executor.Set("optimizer/learning_rate", 0.5 / (run + 1)));
      RETURN_IF_ERROR(TrainByServers(executor, run, run + 1, rank, 2));
    }
    return absl::OkStatus();
  };
  for (const absl::Status& status : StatusOfEach(2, [&](Communicator& communicator, Device& device) {
         ASSIGN_OR_RETURN(const auto executor, LoadStep(graph, communicator, device, std::nullopt, nullptr));
         RETURN_IF_ERROR(train(*executor, communicator.rank()));
         ASSIGN_OR_RETURN(States own, Read(*executor));
         if (communicator.rank() == 0) expected = std::move(own);
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  OnWorkers(graph, 2, 1, [&](Executor& executor, int rank) -> absl::Status {
    RETURN_IF_ERROR(train(executor, rank));
    ASSIGN_OR_RETURN(const States states, Read(executor));
    ExpectSameBits(states, expected);
    return absl::OkStatus();
  });
}

// States that were read from one job continue in another one with a different number of servers, including the step
// counter.
TEST(ParameterServer, GoesOnFromStatesThatWereRead) {
  const Graph graph = StepOf(kAdam);
  const States expected = WithAllReduce(graph, 2);
  States half;
  OnWorkers(graph, 2, 2, [&](Executor& executor, int rank) -> absl::Status {
    RETURN_IF_ERROR(AssignFirst(executor));
    RETURN_IF_ERROR(TrainByServers(executor, 0, kServerRuns / 2, rank, 2));
    ASSIGN_OR_RETURN(States states, Read(executor));
    if (rank == 0) half = std::move(states);
    return absl::OkStatus();
  });
  EXPECT_EQ(half.at("optimizer/step").data<int64_t>()[0], kServerRuns / 2);
  OnWorkers(graph, 2, 1, [&](Executor& executor, int rank) -> absl::Status {
    RETURN_IF_ERROR(AssignFirst(executor));
    RETURN_IF_ERROR(TrainByServers(executor, 0, 1, rank, 2));  // the next assignment overwrites this
    RETURN_IF_ERROR(AssignOnRanks(executor, half));
    ASSIGN_OR_RETURN(const States assigned, Read(executor));
    ExpectSameBits(assigned, half);
    RETURN_IF_ERROR(TrainByServers(executor, kServerRuns / 2, kServerRuns, rank, 2));
    ASSIGN_OR_RETURN(const States states, Read(executor));
    ExpectSameBits(states, expected);
    return absl::OkStatus();
  });
}

// States of two programs with the same names are separate on the servers.
TEST(ParameterServer, ProgramsHaveStatesOfTheirOwn) {
  const Graph graph = StepOf(kMomentum);
  const States expected = WithAllReduce(graph, 1);
  ServersInProcess job({.servers = 1, .workers = 1, .make_update = UpdatesOfServers()});
  const auto client = job.Connect(0);
  const absl::Status status = StatusOfEach(1, [&](Communicator& communicator, Device& device) -> absl::Status {
    ASSIGN_OR_RETURN(const auto first, LoadStep(graph, communicator, device, Synchronous(), client.get()));
    ASSIGN_OR_RETURN(const auto second, LoadStep(graph, communicator, device, Synchronous(), client.get()));
    for (Executor* executor : {first.get(), second.get()}) RETURN_IF_ERROR(AssignFirst(*executor));
    RETURN_IF_ERROR(first->Set("optimizer/learning_rate", 100));
    RETURN_IF_ERROR(TrainByServers(*first, 0, 2, 0, 1));
    RETURN_IF_ERROR(TrainByServers(*second, 0, kServerRuns, 0, 1));
    ASSIGN_OR_RETURN(const States states, Read(*second));
    ExpectSameBits(states, expected);
    return absl::OkStatus();
  })[0];
  EXPECT_TRUE(status.ok()) << status;
}

// --- What a rank has ------------------------------------------------------------------------------------------------

TEST(ParameterServer, WhatServersKeepNoRankHas) {
  const Graph graph = StepOf(kAdam);
  const auto backend = *CreateBackend("cpu");
  CompileOptions options;
  options.mesh = Mesh({{"data", 2}});
  const absl::StatusOr<Executable> plain = Compile(graph.Clone(), *backend, options);
  options.servers = Synchronous();
  const absl::StatusOr<Executable> served = Compile(graph.Clone(), *backend, options);
  ASSERT_TRUE(plain.ok() && served.ok()) << plain.status() << served.status();
  EXPECT_EQ(served->BytesOf(BufferKind::kState), (60 + 10 + 40) * sizeof(float));
  EXPECT_EQ(plain->BytesOf(BufferKind::kState), 3 * (60 + 10 + 40) * sizeof(float) + sizeof(int64_t));
  EXPECT_NE(served->certificate.hash, plain->certificate.hash);
  // Each gradient is pushed as soon as it is computed. The pull of the new value starts after the last use of the old
  // value, overwrites it, and is waited for at the end.
  std::vector<std::string> kinds;
  for (const auto& step : served->steps) {
    const StepKind kind = step->info().kind;
    if (kind == StepKind::kPush || kind == StepKind::kStartPull || kind == StepKind::kWaitPull)
      kinds.push_back(step->info().name);
    else if (kind == StepKind::kKernel && (kinds.empty() || kinds.back() != "kernel")) kinds.emplace_back("kernel");
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"kernel", "push", "pull.start", "kernel", "push", "pull.start", "kernel",
                                             "push", "pull.start", "pull.wait", "pull.wait", "pull.wait"}))
      << served->ToString();
  EXPECT_THAT(served->graph_text, AllOf(HasSubstr("push"), HasSubstr("pull"), HasSubstr("graph @update")));
  for (const auto& step : served->steps) {
    if (step->info().kind != StepKind::kCopy) continue;
    for (const StepOperand& write : step->info().writes)
      EXPECT_NE(served->buffers[static_cast<size_t>(write.slice.buffer)].kind, BufferKind::kState) << write.name;
  }
}

// --- Asynchronous ---------------------------------------------------------------------------------------------------

// Each worker has its own program.
void OnAsynchronousWorkers(const Graph& graph, int workers, int servers, int64_t max_staleness,
                           const std::function<absl::Status(Executor& executor, ServerClient& client)>& f) {
  ServersInProcess job({.servers = servers, .workers = workers, .make_update = UpdatesOfServers()});
  std::atomic<int> ran = 0;
  RunWorkers(job, workers, [&](ServerClient& client) {
    const auto run = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const auto communicator, CreateSingle());
      const auto device = CreateHostDevice();
      ASSIGN_OR_RETURN(const auto executor,
                       LoadStep(graph, *communicator, *device, Asynchronous(max_staleness), &client));
      ++ran;
      return f(*executor, client);
    };
    const absl::Status status = run();
    EXPECT_TRUE(status.ok()) << "worker " << client.rank() << ": " << status;
  });
  EXPECT_EQ(ran, workers);
}

TEST(ParameterServer, WhatTheyHaveCannotBeBound) {
  const Graph graph = StepOf(kAdam);
  OnAsynchronousWorkers(graph, 1, 1, -1, [&](Executor& executor, ServerClient&) -> absl::Status {
    for (const ValueInfo& state : executor.executable().states) {
      Tensor memory(state.local_type);
      const absl::Status bound = executor.BindState(state.name, {memory.type(), memory.mutable_bytes()}, true);
      EXPECT_THAT(std::string(bound.message()), HasSubstr("state " + state.name + " is updated by parameter servers"));
    }
    return absl::OkStatus();
  });
}

TEST(ParameterServer, OneAsynchronousWorkerTrainsAsARank) {
  for (const char* optimizer : {kMomentum, kAdam}) {
    const Graph graph = StepOf(optimizer);
    const States expected = WithAllReduce(graph, 1);
    OnAsynchronousWorkers(graph, 1, 2, -1, [&](Executor& executor, ServerClient& client) -> absl::Status {
      RETURN_IF_ERROR(AssignFirst(executor));
      RETURN_IF_ERROR(TrainByServers(executor, 0, kServerRuns, 0, 1));
      ASSIGN_OR_RETURN(const States states, Read(executor));
      ExpectSameBits(states, expected);
      ASSIGN_OR_RETURN(const auto staleness, client.Staleness());
      // The pieces: w1 is split over both servers, b1 and w2 are whole.
      EXPECT_EQ(staleness, (std::map<int64_t, int64_t>{{0, 4 * kServerRuns}}));
      return absl::OkStatus();
    });
  }
}

TEST(ParameterServer, AllGradientsOfAsynchronousWorkersCount) {
  const Graph graph = StepOf(kAdam);
  std::mutex mutex;
  std::map<int, States> states;
  std::atomic<bool> has_trained = false;
  OnAsynchronousWorkers(graph, 2, 1, -1, [&](Executor& executor, ServerClient& client) -> absl::Status {
    RETURN_IF_ERROR(AssignFirst(executor));
    RETURN_IF_ERROR(TrainByServers(executor, 0, 1, 0, 1));
    // Worker 0 finishes first, so that its copies are not the newest.
    while (client.rank() == 1 && !has_trained) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const absl::Status trained = TrainByServers(executor, 1, kServerRuns, 0, 1);
    if (client.rank() == 0) has_trained = true;
    RETURN_IF_ERROR(trained);
    RETURN_IF_ERROR(client.Barrier());
    ASSIGN_OR_RETURN(States own, Read(executor));
    EXPECT_EQ(own.at("optimizer/step").data<int64_t>()[0], 2 * kServerRuns);
    ASSIGN_OR_RETURN(const auto staleness, client.Staleness());
    int64_t updates = 0;
    for (const auto& [late, times] : staleness) updates += times;
    EXPECT_EQ(updates, 3 * 2 * kServerRuns);
    const std::lock_guard<std::mutex> lock(mutex);
    states[client.rank()] = std::move(own);
    return absl::OkStatus();
  });
  ExpectSameBits(states[0], states[1]);  // the servers' values, which all workers read
}

// The values of rank 0 are used, and no gradient is applied to earlier values.
TEST(ParameterServer, AsynchronousWorkersBeginAtTheValuesOfTheFirst) {
  const Graph graph = StepOf("optimizer=SGD, learning_rate=0");
  std::array<float, 2> losses = {};
  OnAsynchronousWorkers(graph, 2, 1, -1, [&](Executor& executor, ServerClient& client) -> absl::Status {
    const bool is_first = client.rank() == 0;
    const Tensor bias = Tensor::Full({DType::kF32, {10}}, is_first ? 0.3 : 0.4);
    RETURN_IF_ERROR(executor.AssignState("b1", {bias.type(), bias.bytes()}));
    std::mt19937_64 random(is_first ? 1 : 2);
    const Tensor weight = RandomTensor({DType::kF32, {10, 4}}, random, -1, 1);
    RETURN_IF_ERROR(executor.AssignState("w2", {weight.type(), weight.bytes()}));
    RETURN_IF_ERROR(TrainByServers(executor, 0, 1, 0, 1));
    ASSIGN_OR_RETURN(const ConstTensorRef loss, executor.ResultOfLastRun("loss"));
    losses[static_cast<size_t>(client.rank())] = *static_cast<const float*>(loss.data);
    ASSIGN_OR_RETURN(const States states, Read(executor));
    EXPECT_EQ(states.at("b1").At(0), 0.3F);
    return absl::OkStatus();
  });
  EXPECT_EQ(losses[0], losses[1]);  // the batches are equal
}

TEST(ParameterServer, StalenessIsBounded) {
  constexpr int64_t kBound = 1;
  const Graph graph = StepOf(kMomentum);
  std::atomic<int> slow = 0;
  OnAsynchronousWorkers(graph, 2, 1, kBound, [&](Executor& executor, ServerClient& client) -> absl::Status {
    RETURN_IF_ERROR(AssignFirst(executor));
    for (int run = 0; run < 6; ++run) {
      if (client.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        ++slow;  // counted before its push
      }
      RETURN_IF_ERROR(TrainByServers(executor, run, run + 1, 0, 1));
      if (client.rank() == 0) {
        EXPECT_LE(run + 1 - slow, kBound) << "it is ahead by more than the bound";
      }
    }
    RETURN_IF_ERROR(client.Barrier());
    ASSIGN_OR_RETURN(const auto staleness, client.Staleness());
    EXPECT_GT(staleness.rbegin()->first, 0) << "nobody was late: the test tests nothing";
    return absl::OkStatus();
  });
}

// --- Refused programs and failures -----------------------------------------------------------------------------------

TEST(ParameterServer, ADeadServerIsNamed) {
  const Graph graph = StepOf(kMomentum);
  ServersInProcess job({.servers = 2, .workers = 2, .timeout = absl::Seconds(20), .make_update = UpdatesOfServers()});
  std::atomic<bool> is_dead = false;
  const std::vector<absl::Status> statuses = StatusOfEach(2, [&](Communicator& communicator, Device& device) {
    const auto client = job.Connect(communicator.rank());
    absl::StatusOr<std::unique_ptr<Executor>> loaded =
        LoadStep(graph, communicator, device, Synchronous(), client.get());
    RETURN_IF_ERROR(loaded.status());
    Executor& executor = **loaded;
    RETURN_IF_ERROR(AssignFirst(executor));
    RETURN_IF_ERROR(TrainByServers(executor, 0, 1, communicator.rank(), 2));
    RETURN_IF_ERROR(client->Barrier());
    if (communicator.rank() == 0) {
      job.Kill(1);
      is_dead = true;
    }
    while (!is_dead) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return TrainByServers(executor, 1, 3, communicator.rank(), 2);
  });
  bool named = false;
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    named = named || MessageOf(status).find("server 1 (rank 3 of the job") != std::string::npos;
  }
  EXPECT_TRUE(named) << statuses[0] << statuses[1];
}

// Two workers load a step. The second fails, without telling the servers and without ending its process, while the
// first waits in `wait` for the second. Returns the error that the first worker gets, which must be immediate.
absl::Status HeardInWait(const Graph& graph, const passes::ServerOptions& options, bool tolerates_loss,
                         const std::function<absl::Status(Executor& executor)>& wait) {
  const absl::Duration timeout = absl::Seconds(tolerates_loss && !options.synchronous ? 1 : 60);
  ServersInProcess job(
      {.workers = 2, .tolerates_loss = tolerates_loss, .timeout = timeout, .make_update = UpdatesOfServers()});
  std::atomic<bool> is_over = false;
  const absl::Time begin = absl::Now();
  const std::vector<absl::Status> statuses = StatusOfEach(2, [&](Communicator& world, Device& device) -> absl::Status {
    const auto client = job.Connect(world.rank());
    ASSIGN_OR_RETURN(const auto alone, world.Split(world.rank(), "a worker of asynchronous servers"));
    Communicator& own = options.synchronous ? world : *alone;
    ASSIGN_OR_RETURN(const auto executor, LoadStep(graph, own, device, options, client.get()));
    RETURN_IF_ERROR(AssignFirst(*executor));
    RETURN_IF_ERROR(
        TrainByServers(*executor, 0, 1, options.synchronous ? world.rank() : 0, options.synchronous ? 2 : 1));
    if (world.rank() == 0) {
      const absl::Status heard = wait(*executor);
      is_over = true;
      return heard;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    world.Abort(InvalidArgument() << "the culprit's own words");
    while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  });
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  return statuses[0];
}

absl::Status AssignAndTrain(Executor& executor) {
  RETURN_IF_ERROR(AssignFirst(executor));
  return TrainByServers(executor, 1, 2, 0, executor.executable().served.front().synchronous ? 2 : 1);
}

TEST(ParameterServer, WhoWaitsAtABarrierOfServersHearsOfTheWorld) {
  for (const bool tolerates_loss : {false, true}) {
    EXPECT_THAT(
        MessageOf(HeardInWait(StepOf(kMomentum), Synchronous(), tolerates_loss, AssignAndTrain)),
        AllOf(HasSubstr("states that were assigned"), HasSubstr("rank 1"), HasSubstr("the culprit's own words")));
  }
  EXPECT_THAT(MessageOf(HeardInWait(StepOf(kMomentum), Asynchronous(), false, AssignAndTrain)),
              AllOf(HasSubstr("states that were assigned"), HasSubstr("rank 1"), HasSubstr("the culprit's own words")));
}

// Worker 0 is ahead of the other worker by more than the bound.
TEST(ParameterServer, WhoWaitsForAReplyHearsOfTheWorld) {
  const auto go_ahead = [](Executor& executor) { return TrainByServers(executor, 1, 4, 0, 1); };
  EXPECT_THAT(MessageOf(HeardInWait(StepOf(kMomentum), Asynchronous(0), false, go_ahead)),
              AllOf(HasSubstr("pu"), HasSubstr("rank 1"), HasSubstr("the culprit's own words")));
}

// If workers may die, an asynchronous worker does not depend on the world of all ranks.
TEST(ParameterServer, ATolerantJobDoesWithoutTheWorld) {
  EXPECT_THAT(MessageOf(HeardInWait(StepOf(kMomentum), Asynchronous(), true, AssignAndTrain)),
              AllOf(HasSubstr("waits for worker 1"), Not(HasSubstr("the culprit's own words"))));
}

class FailsOnce : public Step {
 public:
  explicit FailsOnce(std::unique_ptr<Step> step) : Step(step->info()), step_(std::move(step)) {}
  absl::Status Run(StepContext& context) override {
    return std::exchange(has_failed_, true) ? step_->Run(context) : Internal() << "a kernel fails";
  }

 private:
  const std::unique_ptr<Step> step_;
  bool has_failed_ = false;
};

// Returns a program of one asynchronous worker whose first run fails after it has started to pull.
Executable FailingProgram(const Graph& graph) {
  CompileOptions options;
  options.servers = Asynchronous();
  Executable executable = *Compile(graph.Clone(), **CreateBackend("cpu"), options);
  const auto pull = std::find_if(executable.steps.begin(), executable.steps.end(),
                                 [](const auto& step) { return step->info().kind == StepKind::kStartPull; });
  LOCKSTEP_CHECK(pull != executable.steps.end());
  *std::next(pull) = std::make_unique<FailsOnce>(std::move(*std::next(pull)));
  return executable;
}

// Values pulled by a failed run arrive while other programs use the servers. The address sanitizer would report a write
// to the memory in which the failed program had its weights.
TEST(ParameterServer, WhatAFailedRunHasPulledIsWrittenNowhere) {
  ServersInProcess job({.make_update = UpdatesOfServers()});
  const auto client = job.Connect(0);
  const auto communicator = *CreateSingle();
  const auto device = CreateHostDevice(), other_device = CreateHostDevice();
  const Graph graph = StepOf(kMomentum);
  auto other = LoadStep(graph, *communicator, *other_device, Asynchronous(), client.get());
  ASSERT_TRUE(other.ok()) << other.status();
  {
    const auto own = *CreateSingle();
    auto executor = Executor::Load(FailingProgram(graph), own.get(), device.get(), {.servers = client.get()});
    ASSERT_TRUE(executor.ok()) << executor.status();
    EXPECT_TRUE(AssignFirst(**executor).ok());
    EXPECT_THAT(MessageOf(TrainByServers(**executor, 0, 1, 0, 1)), HasSubstr("a kernel fails"));
  }
  EXPECT_TRUE(AssignFirst(**other).ok());
  const absl::Status trained = TrainByServers(**other, 0, kServerRuns, 0, 1);
  EXPECT_TRUE(trained.ok()) << trained;
  const absl::StatusOr<States> states = Read(**other);
  ASSERT_TRUE(states.ok()) << states.status();
  ExpectSameBits(*states, WithAllReduce(graph, 1));
}

// Values pulled by the failed run do not overwrite states that are assigned after it.
TEST(ParameterServer, AnAsynchronousWorkerGoesOnAfterAFailure) {
  const Graph graph = StepOf(kMomentum);
  ServersInProcess job({.make_update = UpdatesOfServers()});
  const auto client = job.Connect(0);
  const auto communicator = *CreateSingle();
  const auto device = CreateHostDevice();
  auto executor = Executor::Load(FailingProgram(graph), communicator.get(), device.get(), {.servers = client.get()});
  ASSERT_TRUE(executor.ok()) << executor.status();
  absl::StatusOr<States> first = Read(**executor);  // zeros, except states that the servers keep
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(AssignFirst(**executor).ok());
  EXPECT_THAT(MessageOf(TrainByServers(**executor, 0, 1, 0, 1)), HasSubstr("a kernel fails"));
  EXPECT_TRUE(AssignOnRanks(**executor, *first).ok());
  EXPECT_TRUE(AssignFirst(**executor).ok());
  const absl::Status trained = TrainByServers(**executor, 0, kServerRuns, 0, 1);
  ASSERT_TRUE(trained.ok()) << trained;
  const absl::StatusOr<States> states = Read(**executor);
  ASSERT_TRUE(states.ok()) << states.status();
  ExpectSameBits(*states, WithAllReduce(graph, 1));
}

TEST(ParameterServer, WithoutServersThereIsAnError) {
  const Graph graph = StepOf(kMomentum);
  const absl::Status status = StatusOfEach(1, [&](Communicator& communicator, Device& device) {
    return LoadStep(graph, communicator, device, Synchronous(), nullptr).status();
  })[0];
  EXPECT_THAT(MessageOf(status), HasSubstr("compiled for parameter servers, but loaded without them"));
}

TEST(ParameterServer, WhatServersDoNotDoIsRefused) {
  const auto backend = *CreateBackend("cpu");
  const auto error = [&](const Graph& graph, const std::function<void(CompileOptions&)>& change) {
    CompileOptions options;
    options.mesh = Mesh({{"data", 2}});
    options.servers = Synchronous();
    change(options);
    return MessageOf(Compile(graph.Clone(), *backend, options).status());
  };
  const Graph step = StepOf(kMomentum);
  EXPECT_THAT(error(step, [](CompileOptions& options) { options.wire = "bf16"; }), HasSubstr("wire=\"bf16\""));
  EXPECT_THAT(error(step, [](CompileOptions& options) { options.shared_weights = true; }), HasSubstr("shared_weights"));
  EXPECT_THAT(error(step, [](CompileOptions& options) { options.servers = Asynchronous(); }),
              HasSubstr("asynchronous=True does not go with mesh={data=2}"));
  for (const Mesh& mesh : {Mesh({{"data", 2}, {"model", 2}}), Mesh({{"data", 1}, {"model", 2}})}) {
    for (const bool replicated : {false, true}) {
      EXPECT_THAT(error(step,
                        [&](CompileOptions& options) {
                          options.mesh = mesh;
                          options.replicated = replicated;
                        }),
                  HasSubstr("has ranks along axis model"));
    }
  }
  for (const char* const option : {"clipping=global_norm", "clipping=value", "accumulate=2"}) {
    EXPECT_THAT(error(StepOf(std::string("optimizer=SGD, learning_rate=0.1, ") + option), [](CompileOptions&) {}),
                AllOf(HasSubstr("push"),
                      HasSubstr("clipping (clip) and micro-batches (accumulate), need strategy=\"all_reduce\"")))
        << option;
  }
  for (const char* const option : {"precision=f16", "uneven=true"}) {
    EXPECT_THAT(error(StepOf(std::string("optimizer=SGD, learning_rate=0.1, ") + option), [](CompileOptions&) {}),
                HasSubstr("as with the scaling of an f16 loss or with uneven=True, which skip some updates"))
        << option;
  }
  const Graph model = *ParseGraph(WithAll(kModel, "ROWS", "12"));
  EXPECT_THAT(error(model, [](CompileOptions&) {}), HasSubstr("it has no optimizer"));
}

}  // namespace
}  // namespace lockstep
