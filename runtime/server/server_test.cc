#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "core/status.h"
#include "runtime/server/server_test_support.h"

namespace lockstep {
namespace {

TensorType F32(std::vector<int64_t> dims) { return {DType::kF32, Shape(std::move(dims))}; }

void Expect(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

// Rank 0 creates the key. Afterwards all ranks can use it.
void Make(ServerClient& client, const std::string& key, const std::vector<float>& value,
          const ServerClient::ArrayOptions& options, bool adds = true) {
  if (client.rank() == 0) {
    Expect(client.Init(key, F32({static_cast<int64_t>(value.size())}), value.data(), options));
    if (adds) Expect(client.SetUpdate(key, [](const TensorType&) { return std::string(kAddUpdate); }));
  }
  Expect(client.Barrier());
}

// w - rate * g, with the number of updates as its state.
class Descend final : public Update {
 public:
  explicit Descend(TensorType type) : type_(std::move(type)) {}
  absl::Status Run(const std::byte* value, const std::byte* gradient, std::byte* next) override {
    const auto* w = reinterpret_cast<const float*>(value);
    const auto* g = reinterpret_cast<const float*>(gradient);
    for (int64_t i = 0; i < type_.num_elements(); ++i) reinterpret_cast<float*>(next)[i] = w[i] - rate_ * g[i];
    ++count_;
    for (float& each : moments_) each += 1;
    return absl::OkStatus();
  }
  std::vector<std::pair<std::string, TensorType>> states() const override {
    return {{"count", {DType::kI64, Shape()}}, {"moments", type_}};
  }
  absl::Status ReadState(std::string_view name, std::byte* data) override {
    if (name == "count") std::memcpy(data, &count_, sizeof(count_));
    else std::memcpy(data, moments_.data(), type_.num_bytes());
    return absl::OkStatus();
  }
  absl::Status WriteState(std::string_view name, const std::byte* data) override {
    if (name == "count") std::memcpy(&count_, data, sizeof(count_));
    else std::memcpy(moments_.data(), data, type_.num_bytes());
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Set(std::string_view setting, double value) override {
    if (setting != "rate") return false;
    if (value < 0) return InvalidArgument() << "rate is " << value;
    rate_ = static_cast<float>(value);
    return true;
  }

 private:
  const TensorType type_;
  float rate_ = 0.5;
  int64_t count_ = 0;
  std::vector<float> moments_ = std::vector<float>(static_cast<size_t>(type_.num_elements()));
};

absl::StatusOr<std::unique_ptr<Update>> MakeDescend(const std::string& text, const TensorType& type) {
  if (text != "descend") return InvalidArgument() << "no update " << text;
  return std::make_unique<Descend>(type);
}

// Changes nothing, and calls a function in each update.
class Told final : public Update {
 public:
  Told(TensorType type, std::function<void()> run) : type_(std::move(type)), run_(std::move(run)) {}
  absl::Status Run(const std::byte* value, const std::byte*, std::byte* next) override {
    std::memcpy(next, value, type_.num_bytes());
    run_();
    return absl::OkStatus();
  }
  std::vector<std::pair<std::string, TensorType>> states() const override { return {}; }
  absl::Status ReadState(std::string_view, std::byte*) override { return absl::OkStatus(); }
  absl::Status WriteState(std::string_view, const std::byte*) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Set(std::string_view, double) override { return false; }

 private:
  const TensorType type_;
  const std::function<void()> run_;
};

// With shared memory, and only with TCP; arrays that are split or small.
class Server : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Transports, Server, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "SharedMemory" : "Tcp"; });

TEST_P(Server, NoUpdateIsLost) {
  constexpr int kWorkers = 3, kPushes = 50;
  ServersInProcess servers({.servers = 2, .workers = kWorkers, .shares_memory = GetParam()});
  std::atomic<int> ran{0};
  RunWorkers(servers, kWorkers, [&](ServerClient& client) {
    Make(client, "small", std::vector<float>(10, 1), {});
    Make(client, "large", std::vector<float>(10001, 2), {.bigarray_bound = 1000});
    const std::vector<float> small(10, static_cast<float>(client.rank() + 1)), large(10001, 1);
    for (int i = 0; i < kPushes; ++i) {
      Expect(client.Push("small", small.data()));
      Expect(client.Push("large", large.data()));
    }
    Expect(client.Barrier());
    std::vector<float> got(10001);
    Expect(client.Pull("small", got.data()));
    for (int i = 0; i < 10; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], 1 + kPushes * (1 + 2 + 3));
    Expect(client.Pull("large", got.data()));
    for (const float each : got) ASSERT_EQ(each, 2 + kPushes * kWorkers);
    ++ran;
  });
  EXPECT_EQ(ran, kWorkers);
  EXPECT_TRUE(servers.Outcome(0).ok());
  EXPECT_TRUE(servers.Outcome(1).ok());
}

TEST_P(Server, APullSeesWhatTheWorkerPushedBefore) {
  ServersInProcess servers({.servers = 2, .workers = 1, .shares_memory = GetParam(), .make_update = MakeDescend});
  RunWorkers(servers, 1, [&](ServerClient& client) {
    std::vector<float> expected(5000);
    std::iota(expected.begin(), expected.end(), 0.25f);
    Make(client, "w", expected, {.bigarray_bound = 100}, false);
    Expect(client.SetUpdate("w", [](const TensorType&) { return std::string("descend"); }));
    std::vector<float> got(5000), gradient(5000);
    for (int step = 0; step < 20; ++step) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(step) / static_cast<float>(i + 1);
        expected[i] -= 0.5f * gradient[i];
      }
      Expect(client.PushPull("w", gradient.data(), got.data()));
      ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << step;
    }
  });
}

// The caller may have reused its memory, and the server may write again to the memory that it showed.
TEST_P(Server, WhatIsForgottenIsNotWritten) {
  ServersInProcess servers({.servers = 2, .workers = 2, .shares_memory = GetParam()});
  std::atomic<int> ran{0};
  RunWorkers(servers, 2, [&](ServerClient& client) {
    Make(client, "w", std::vector<float>(5000, 1), {.synchronous = true, .bigarray_bound = 1000});
    const std::vector<float> gradient(5000, 1), before(5000, -1);
    std::vector<float> got = before, last(5000);
    for (int i = 0; i < 3; ++i) {
      Expect(client.Push("w", gradient.data()));
      const auto pull = client.StartPull("w", got.data());
      Expect(pull.status());
      client.Forget(*pull);
      Expect(client.Barrier());
    }
    EXPECT_EQ(got, before);
    Expect(client.Pull("w", last.data()));
    EXPECT_EQ(last, std::vector<float>(5000, 1 + 3 * 2));
    ++ran;
  });
  EXPECT_EQ(ran, 2);
}

TEST_P(Server, SynchronousGradientsAreAddedInTheOrderOfWorkers) {
  constexpr int kWorkers = 3;
  ServersInProcess servers({.servers = 2, .workers = kWorkers, .shares_memory = GetParam()});
  // Another order would give other bits.
  const float parts[kWorkers] = {1e8f, 1.0f, -1e8f};
  RunWorkers(servers, kWorkers, [&](ServerClient& client) {
    Make(client, "w", std::vector<float>(3000), {.synchronous = true, .bigarray_bound = 100});
    std::vector<float> gradient(3000, parts[client.rank()]), got(3000);
    float expected = 0;
    for (int step = 0; step < 10; ++step) {
      Expect(client.PushPull("w", gradient.data(), got.data()));
      expected += (parts[0] + parts[1]) + parts[2];
      for (const float each : got) ASSERT_EQ(each, expected) << step;
    }
  });
}

TEST_P(Server, SynchronousWithoutAnUpdateTheSumIsTheValue) {
  ServersInProcess servers({.servers = 1, .workers = 2, .shares_memory = GetParam()});
  RunWorkers(servers, 2, [&](ServerClient& client) {
    Make(client, "w", {1, 2}, {.synchronous = true}, false);
    const std::vector<float> gradient = {10, 20};
    std::vector<float> got(2);
    for (int step = 0; step < 3; ++step) {
      Expect(client.PushPull("w", gradient.data(), got.data()));
      EXPECT_EQ(got, (std::vector<float>{20, 40}));
    }
  });
}

TEST_P(Server, RowsOfAnArrayThatIsCut) {
  ServersInProcess servers({.servers = 3, .workers = 1, .shares_memory = GetParam()});
  RunWorkers(servers, 1, [&](ServerClient& client) {
    std::vector<float> value(7 * 10);
    std::iota(value.begin(), value.end(), 0.0f);
    Expect(client.Init("rows", F32({7, 10}), value.data(), {.bigarray_bound = 10}));
    Expect(client.Init("wide", F32({2, 35}), value.data(), {.bigarray_bound = 10}));
    std::vector<float> got(4 * 10), wide(35);
    Expect(client.PullRows("rows", std::vector<int64_t>{6, 0, 6, 3}, got.data()));
    for (size_t i = 0; i < 40; ++i) {
      const std::vector<size_t> rows = {6, 0, 6, 3};
      ASSERT_EQ(got[i], static_cast<float>(rows[i / 10] * 10 + i % 10));
    }
    Expect(client.PullRows("wide", std::vector<int64_t>{1}, wide.data()));
    for (size_t i = 0; i < 35; ++i) ASSERT_EQ(wide[i], static_cast<float>(35 + i));
    EXPECT_NE(std::string(client.PullRows("rows", std::vector<int64_t>{7}, got.data()).message()).find("no row 7"),
              std::string::npos);
  });
}

TEST_P(Server, StatesAndSettings) {
  ServersInProcess servers({.servers = 2, .workers = 1, .shares_memory = GetParam(), .make_update = MakeDescend});
  RunWorkers(servers, 1, [&](ServerClient& client) {
    Make(client, "w", std::vector<float>(3000), {.bigarray_bound = 100}, false);
    Expect(client.SetUpdate("w", [](const TensorType&) { return std::string("descend"); }));
    const std::vector<float> gradient(3000, 1);
    std::vector<float> got(3000);
    Expect(client.Push("w", gradient.data()));
    EXPECT_EQ(*client.Set("rate", 0.25), 2);
    EXPECT_EQ(*client.Set("momentum", 0.25), 0);
    EXPECT_EQ(client.Set("rate", -1).status().message(), "rate is -1");
    Expect(client.PushPull("w", gradient.data(), got.data()));
    for (const float each : got) ASSERT_EQ(each, -0.75f);
    EXPECT_EQ(client.ReadState("w", "count")->data<int64_t>()[0], 2);
    Tensor moments = *client.ReadState("w", "moments");
    EXPECT_EQ(moments.type(), F32({3000}));
    for (const float each : moments.data<float>()) ASSERT_EQ(each, 2);
    for (float& each : moments.mutable_data<float>()) each = static_cast<float>(&each - moments.data<float>().data());
    Expect(client.WriteState("w", "moments", moments));
    Expect(client.WriteState("w", "count", Tensor::Scalar(DType::kI64, 9)));
    EXPECT_EQ(*client.ReadState("w", "moments"), moments);
    EXPECT_EQ(client.ReadState("w", "count")->data<int64_t>()[0], 9);
    EXPECT_FALSE(client.ReadState("w", "none").ok());
  });
}

// Applies only to keys with the prefix, and the states beside the value remain.
TEST_P(Server, SettingsOfSomeKeysAndAssignedValues) {
  ServersInProcess servers({.servers = 2, .workers = 1, .shares_memory = GetParam(), .make_update = MakeDescend});
  RunWorkers(servers, 1, [&](ServerClient& client) {
    for (const char* key : {"a/w", "b/w", "@program/w"}) {
      Make(client, key, std::vector<float>(3000), {.bigarray_bound = 100}, false);
      Expect(client.SetUpdate(key, [](const TensorType&) { return std::string("descend"); }));
    }
    EXPECT_EQ(*client.Set("rate", 0.5), 4);  // not the keys of programs
    EXPECT_EQ(*client.Set("rate", 2, "a/"), 2);
    const std::vector<float> gradient(3000, 1);
    std::vector<float> a(3000), b(3000), assigned(3000);
    std::iota(assigned.begin(), assigned.end(), 1.0f);
    Expect(client.PushPull("a/w", gradient.data(), a.data()));
    Expect(client.PushPull("b/w", gradient.data(), b.data()));
    EXPECT_EQ(a, std::vector<float>(3000, -2));
    EXPECT_EQ(b, std::vector<float>(3000, -0.5));
    Expect(client.Assign("a/w", assigned.data()));
    Expect(client.Pull("a/w", a.data()));
    EXPECT_EQ(a, assigned);
    EXPECT_EQ(client.ReadState("a/w", "count")->data<int64_t>()[0], 1);
    Expect(client.PushPull("a/w", gradient.data(), a.data()));
    EXPECT_EQ(a[2999], 2998);
    EXPECT_FALSE(client.Assign("c/w", assigned.data()).ok());
  });
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// One process with two workers: the memory shown to the first, and not read yet, must not change when another writes.
TEST(Server, WhatAPullHasShownStaysUntilItIsRead) {
  ServersInProcess servers({.workers = 2});
  const auto first = servers.Connect(0), second = servers.Connect(1);
  const std::vector<float> ones(5000, 1), twos(5000, 2);
  Expect(first->Init("w", F32({5000}), ones.data(), {}));
  Expect(first->SetUpdate("w", [](const TensorType&) { return std::string(kAddUpdate); }));
  std::vector<float> got(5000);
  const auto shown = [&] {
    const auto pull = first->StartPull("w", got.data());
    Expect(second->Staleness().status());  // so the server has served the pull
    return pull.ok() ? *pull : ServerClient::Ticket();
  };
  ServerClient::Ticket pull = shown();
  for (int i = 0; i < 4; ++i) Expect(second->Push("w", ones.data()));
  Expect(second->Flush());
  Expect(first->Wait(pull));
  EXPECT_EQ(got, ones);
  pull = shown();
  Expect(second->Assign("w", twos.data()));
  Expect(first->Wait(pull));
  EXPECT_EQ(got, std::vector<float>(5000, 1 + 4));
  Expect(first->Pull("w", got.data()));
  EXPECT_EQ(got, twos);
}

// Each piece of memory of a server needs a descriptor.
TEST(Server, WhatWasReadOrForgottenIsWrittenAgain) {
  ServersInProcess servers({});
  const auto client = servers.Connect(0);
  const std::vector<float> ones(5000, 1);
  std::vector<float> got(5000);
  Expect(client->Init("w", F32({5000}), ones.data(), {}));
  Expect(client->SetUpdate("w", [](const TensorType&) { return std::string(kAddUpdate); }));
  size_t before = 0;
  for (int i = 0; i < 60; ++i) {
    if (i == 10) before = OpenDescriptors();
    Expect(client->Push("w", ones.data()));
    const auto pull = client->StartPull("w", got.data());
    Expect(pull.status());
    if (i % 2 == 0) client->Forget(*pull);
    else Expect(client->Wait(*pull));
  }
  EXPECT_LT(OpenDescriptors(), before + 10);
}

TEST(Server, StalenessIsCountedAndBounded) {
  constexpr int kSteps = 40;
  ServersInProcess servers({.servers = 1, .workers = 2});
  std::atomic<int> clock[2] = {0, 0};
  RunWorkers(servers, 2, [&](ServerClient& client) {
    Make(client, "w", {0}, {.max_staleness = 2});
    const float one = 1;
    float got = 0;
    const int own = client.rank();
    for (int step = 0; step < kSteps; ++step) {
      if (own == 1) absl::SleepFor(absl::Milliseconds(1));  // the slow one
      Expect(client.PushPull("w", &one, &got));
      clock[own] = step + 1;
      // The slow one may have pushed once more without having recorded it.
      if (own == 0) {
        ASSERT_LE(step + 1 - clock[1], 3);
      }
    }
    Expect(client.Barrier());
    int64_t updates = 0, most = 0;
    const auto staleness = *client.Staleness();
    for (const auto& [value, count] : staleness) {
      updates += count;
      most = std::max(most, value);
    }
    EXPECT_EQ(updates, 2 * kSteps);
    EXPECT_GE(most, 1);
    EXPECT_LE(most, 2 * 2 + 1);
  });
}

TEST(Server, OneWorkersUpdatesAreNeverStale) {
  ServersInProcess servers({.servers = 2, .workers = 1});
  RunWorkers(servers, 1, [&](ServerClient& client) {
    Make(client, "w", std::vector<float>(100), {.bigarray_bound = 10});
    const std::vector<float> gradient(100);
    std::vector<float> got(100);
    for (int step = 0; step < 5; ++step) {
      Expect(client.Push("w", gradient.data()));  // and once more, without a pull
      Expect(client.PushPull("w", gradient.data(), got.data()));
    }
    EXPECT_EQ(*client.Staleness(), (std::map<int64_t, int64_t>{{0, 20}}));
  });
}

TEST(Server, AnExchangeTellsAllWhatEachSays) {
  ServersInProcess servers({.servers = 2, .workers = 3});
  const std::map<int, std::string> expected = {{0, ""}, {1, "1 2\n3"}, {2, std::string("\0\n0 1\n", 6)}};
  std::atomic<int> ran{0};
  RunWorkers(servers, 3, [&](ServerClient& client) {
    for (int time = 0; time < 3; ++time) {
      const auto told = client.Exchange(expected.at(client.rank()));
      Expect(told.status());
      EXPECT_EQ(*told, expected);
    }
    Expect(client.Barrier());
    ++ran;
  });
  EXPECT_EQ(ran, 3);
}

// The first update holds the server's thread until both workers have sent all their messages.
TEST(Server, AWorkerThatSendsWithoutPauseDoesNotKeepTheServer) {
  constexpr int kKeys = 400;
  std::atomic<bool> may_go{false}, has_begun{false};
  std::vector<int64_t> order;  // of updates, by the type's first extent; used only by the server's thread
  const MakeUpdate make = [&](const std::string&, const TensorType& type) -> absl::StatusOr<std::unique_ptr<Update>> {
    return std::make_unique<Told>(type, [&, extent = type.shape.dims()[0]] {
      order.push_back(extent);
      has_begun = true;
      while (!may_go) absl::SleepFor(absl::Milliseconds(1));
    });
  };
  ServersInProcess servers({.servers = 1, .workers = 2, .shares_memory = false, .make_update = make});
  RunWorkers(servers, 2, [&](ServerClient& client) {
    const std::vector<float> value(1000);  // 4000 bytes
    const auto text = [](const TensorType&) { return std::string("ordered"); };
    const auto key = [](int i) { return "w" + std::to_string(i); };
    if (client.rank() == 0) {
      for (int i = 0; i < kKeys; ++i) {
        Expect(client.Init(key(i), F32({1000}), value.data(), {}));
        Expect(client.SetUpdate(key(i), text));
      }
      Expect(client.Init("other", F32({3}), value.data(), {}));
      Expect(client.SetUpdate("other", text));
    }
    Expect(client.Barrier());
    // No questions while the server is held.
    for (int i = 0; i < kKeys; ++i) Expect(client.TypeOf(key(i)).status());
    Expect(client.TypeOf("other").status());
    Expect(client.Barrier());
    if (client.rank() == 0) {
      for (int i = 0; i < kKeys; ++i) Expect(client.Push(key(i), value.data()));
    } else {
      while (!has_begun) absl::SleepFor(absl::Milliseconds(1));
      Expect(client.Push("other", value.data()));
      absl::SleepFor(absl::Milliseconds(100));  // for messages in flight
      may_go = true;
    }
    Expect(client.Barrier());
  });
  ASSERT_EQ(order.size(), static_cast<size_t>(kKeys) + 1);
  const auto place = std::find(order.begin(), order.end(), 3) - order.begin();
  EXPECT_LT(place, kKeys / 2) << "the other worker's push came after that many of the first's";
}

TEST(Server, WrongCallsAreTheCallersAlone) {
  ServersInProcess servers({.servers = 2, .workers = 1});
  RunWorkers(servers, 1, [&](ServerClient& client) {
    const std::vector<float> value(10);
    std::vector<float> got(10);
    EXPECT_NE(client.Pull("w", got.data()).message().find("no key w"), std::string::npos);
    Expect(client.Init("w", F32({10}), value.data(), {}));
    EXPECT_NE(client.Init("w", F32({10}), value.data(), {}).message().find("key w is there already"),
              std::string::npos);
    Expect(client.Push("w", value.data()));
    EXPECT_NE(client.Flush().message().find("set an optimizer before the first push"), std::string::npos);
    const auto text = [](const TensorType&) { return std::string("graph"); };
    EXPECT_NE(client.SetUpdate("w", text).message().find("key w: this server knows no update"), std::string::npos);
    Expect(client.Pull("w", got.data()));
    EXPECT_EQ(got, value);
  });
}

TEST(Server, EmptyArraysAndScalars) {
  ServersInProcess servers({.servers = 2, .workers = 1});
  RunWorkers(servers, 1, [&](ServerClient& client) {
    float value = 3, got = 0;
    Expect(client.Init("scalar", {DType::kF32, Shape()}, &value, {}));
    Expect(client.Init("empty", F32({0, 4}), nullptr, {.bigarray_bound = 0}));
    for (const char* key : {"scalar", "empty"}) {
      Expect(client.SetUpdate(key, [](const TensorType&) { return std::string(kAddUpdate); }));
      Expect(client.PushPull(key, &value, &got));
    }
    EXPECT_EQ(got, 6);
  });
}

}  // namespace
}  // namespace lockstep
