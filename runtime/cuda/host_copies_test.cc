// Tests copies by several threads, and that a forked process can end them.

#include "runtime/cuda/host_copies.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::cuda {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Different(size_t bytes, size_t salt) {
  Bytes values(bytes);
  for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>((i + salt) * 2654435761u >> 13);
  return values;
}

class HostCopiesBy : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Threads, HostCopiesBy, testing::Values(1, 2, 8));

// Copies of a part of a piece, of pieces, and of one byte more, always a few ahead of the oldest.
TEST_P(HostCopiesBy, TheOldestIsDone) {
  HostCopies copies(GetParam());
  copies.FinishAll();
  constexpr size_t kAhead = 3, kSizes[] = {1, HostCopies::kPieceBytes, 5 * HostCopies::kPieceBytes + 1, 1000};
  std::vector<Bytes> from, to;
  for (size_t i = 0; i < 40; ++i) {
    from.push_back(Different(kSizes[i % 4], i));
    to.emplace_back(from.back().size());
  }
  for (size_t i = 0; i < from.size() + kAhead; ++i) {
    if (i < from.size()) copies.Add(to[i].data(), from[i].data(), from[i].size());
    if (i < kAhead) continue;
    copies.FinishOldest();
    EXPECT_TRUE(to[i - kAhead] == from[i - kAhead]) << i;
  }
  for (Bytes& bytes : to) bytes.assign(bytes.size(), std::byte{0});
  for (size_t i = 0; i < from.size(); ++i) copies.Add(to[i].data(), from[i].data(), from[i].size());
  copies.FinishAll();
  EXPECT_TRUE(to == from);
}

TEST(HostCopies, TheOldestComesFirst) {
  HostCopies copies(1);
  const Bytes from(8 * HostCopies::kPieceBytes, std::byte{3});
  Bytes first(from.size()), second(from.size());
  copies.Add(first.data(), from.data(), from.size());
  copies.Add(second.data(), from.data(), from.size());
  copies.FinishOldest();
  EXPECT_TRUE(first == from);
  EXPECT_EQ(second[0], std::byte{0});
  copies.FinishAll();
}

TEST(HostCopies, TheOtherThreadsCopyMeanwhile) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "it looks at the memory while another thread writes it";
#endif
  HostCopies copies(2);
  const Bytes from = Different(3 * HostCopies::kPieceBytes, 0);
  Bytes to(from.size());
  copies.Add(to.data(), from.data(), from.size());
  for (int i = 0; i < 20000 && std::memcmp(to.data(), from.data(), from.size()) != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(to == from);
  copies.FinishAll();
}

TEST(HostCopies, AForkedProcessCanEndThem) {
  auto copies = std::make_unique<HostCopies>(4);
  const Bytes from = Different(3 * HostCopies::kPieceBytes, 0);
  Bytes to(from.size());
  copies->Add(to.data(), from.data(), from.size());
  copies->FinishAll();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // ends it if it waits for a thread
    copies.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::cuda
