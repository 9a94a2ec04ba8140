#include "backends/server_update.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/status.h"

namespace lockstep {
namespace {

const TensorType kType{DType::kF32, Shape({4})};

constexpr char kMomentumUpdate[] = R"(
graph @update(%gradient: f32[4], state %value: f32[4], state %value/v: f32[4], setting %rate: f64[] in [0.0, inf) = 0.5)
    -> (%value: f32[4], %value/v: f32[4]) {
  %value.next, %v.next = sgd_momentum %value, %value/v, %gradient {learning_rate=%rate, momentum=0.5} : f32[4], f32[4]
  return %value.next, %v.next
})";

TEST(ServerUpdate, ComputesWhatTheGraphSays) {
  const absl::StatusOr<MakeUpdate> make = MakeCompiledUpdates();
  ASSERT_TRUE(make.ok()) << make.status();
  absl::StatusOr<std::unique_ptr<Update>> update = (*make)(kMomentumUpdate, kType);
  ASSERT_TRUE(update.ok()) << update.status();
  std::vector<float> value = {1, 2, 3, 4}, next(4);
  const std::vector<float> gradient = {1, 1, 2, 2};
  const auto run = [&] {
    const absl::Status status =
        (*update)->Run(reinterpret_cast<const std::byte*>(value.data()),
                       reinterpret_cast<const std::byte*>(gradient.data()), reinterpret_cast<std::byte*>(next.data()));
    ASSERT_TRUE(status.ok()) << status;
    std::swap(value, next);
  };
  run();
  EXPECT_EQ(value, (std::vector<float>{0.5, 1.5, 2, 3}));
  EXPECT_EQ(next, (std::vector<float>{1, 2, 3, 4})) << "what was there is not touched";
  run();  // v = 1.5 g
  EXPECT_EQ(value, (std::vector<float>{-0.25, 0.75, 0.5, 1.5}));
  ASSERT_EQ((*update)->states().size(), 1u);
  std::vector<float> v(4);
  ASSERT_TRUE((*update)->ReadState("value/v", reinterpret_cast<std::byte*>(v.data())).ok());
  EXPECT_EQ(v, (std::vector<float>{1.5, 1.5, 3, 3}));
  v = {0, 0, 0, 0};
  ASSERT_TRUE((*update)->WriteState("value/v", reinterpret_cast<const std::byte*>(v.data())).ok());
  EXPECT_TRUE(*(*update)->Set("rate", 1));
  EXPECT_FALSE(*(*update)->Set("momentum", 1));
  run();
  EXPECT_EQ(value, (std::vector<float>{-1.25, -0.25, -1.5, -0.5}));
}

TEST(ServerUpdate, RefusesOtherGraphs) {
  const MakeUpdate make = *MakeCompiledUpdates();
  const auto error = [&](const std::string& text) { return std::string(make(text, kType).status().message()); };
  EXPECT_NE(error("graph").find("line"), std::string::npos) << error("graph");
  const std::string no_state =
      "graph @u(%gradient: f32[4], %value: f32[4]) -> (value: f32[4]) {\n  return %gradient\n}";
  EXPECT_NE(error(no_state).find("no state %value"), std::string::npos) << error(no_state);
  const std::string other =
      "graph @u(%gradient: f32[4], state %value: f32[5]) -> (%value: f32[5]) {\n  return %value\n}";
  EXPECT_NE(error(other).find("%value is f32[5], and the array is f32[4]"), std::string::npos) << error(other);
}

}  // namespace
}  // namespace lockstep
