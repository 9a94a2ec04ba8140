// Tests that readers never see a partial event, in spite of concurrent writers.

#include "runtime/record/ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

// All words follow from the first.
struct Numbered {
  uint64_t number = 0;
  uint64_t more[6] = {};

  static Numbered Of(uint64_t number) {
    Numbered event{.number = number};
    for (uint64_t i = 0; i < 6; ++i) event.more[i] = number * (i + 2) + i;
    return event;
  }
  bool IsWhole() const {
    for (uint64_t i = 0; i < 6; ++i) {
      if (more[i] != number * (i + 2) + i) return false;
    }
    return true;
  }
};

struct Memory {
  explicit Memory(uint64_t places)
      : bytes(static_cast<std::byte*>(std::aligned_alloc(64, Ring<Numbered>::Bytes(places))), &std::free) {
    std::memset(bytes.get(), 0, Ring<Numbered>::Bytes(places));
  }
  std::unique_ptr<std::byte, decltype(&std::free)> bytes;
};

TEST(RingTest, HoldsTheLastEventsInOrder) {
  constexpr uint64_t kPlaces = 16;
  const Memory memory(kPlaces);
  Ring<Numbered> ring(memory.bytes.get(), kPlaces);
  std::vector<Numbered> events;
  EXPECT_EQ(ring.Read(0, &events), 0u);
  EXPECT_TRUE(events.empty());
  for (uint64_t i = 0; i < 40; ++i) ring.Write(Numbered::Of(i));
  EXPECT_EQ(ring.Read(0, &events), 40u);
  ASSERT_EQ(events.size(), kPlaces);
  for (uint64_t i = 0; i < kPlaces; ++i) EXPECT_EQ(events[i].number, 24 + i);
  events.clear();
  ring.Write(Numbered::Of(40));
  EXPECT_EQ(ring.Read(40, &events), 41u);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].number, 40u);
  EXPECT_EQ(ring.ReadAll(&events), 41 - kPlaces);
  EXPECT_EQ(events.size(), 1 + kPlaces);
}

TEST(RingTest, AnEventThatIsBeingWrittenIsNotSeen) {
  constexpr uint64_t kPlaces = 4;
  const Memory memory(kPlaces);
  Ring<Numbered> ring(memory.bytes.get(), kPlaces);
  ring.Write(Numbered::Of(0));
  ring.Write(Numbered::Of(1));
  // The state after a writer died within its third event: the number is taken, the stamp is missing.
  reinterpret_cast<std::atomic<uint64_t>*>(memory.bytes.get())->fetch_add(1);
  std::vector<Numbered> events;
  EXPECT_EQ(ring.Read(0, &events), 2u);
  EXPECT_EQ(events.size(), 2u);
  // Later writers overwrite that place in the end, and all other events are read.
  for (uint64_t i = 3; i < 8; ++i) ring.Write(Numbered::Of(i));
  events.clear();
  EXPECT_EQ(ring.Read(0, &events), 8u);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].number, 4u);
}

TEST(RingTest, ReadersSeeWholeEventsWhileWritersOverwriteThem) {
  constexpr uint64_t kPlaces = 8;  // so that nearly every event is overwritten during a read
  constexpr uint64_t kEvents = 200'000;
  const Memory memory(kPlaces);
  Ring<Numbered> ring(memory.bytes.get(), kPlaces);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint64_t i = 0; i < kEvents; ++i) ring.Write(Numbered::Of(i));
    done = true;
  });
  uint64_t next = 0, seen = 0, previous = 0;
  bool ordered = true, whole = true;
  for (bool last = false; !last;) {
    last = done;
    std::vector<Numbered> events;
    next = ring.Read(next, &events);
    for (const Numbered& event : events) {
      whole = whole && event.IsWhole();
      ordered = ordered && (seen == 0 || event.number > previous);
      previous = event.number;
      ++seen;
    }
  }
  writer.join();
  EXPECT_TRUE(whole);
  EXPECT_TRUE(ordered);
  EXPECT_EQ(next, kEvents);
  EXPECT_EQ(previous, kEvents - 1);
  EXPECT_GE(seen, kPlaces);
}

TEST(RingTest, EventsOfSeveralWritersAreAllThere) {
  constexpr uint64_t kPlaces = 1 << 12, kEach = 1000;
  const Memory memory(kPlaces);
  Ring<Numbered> ring(memory.bytes.get(), kPlaces);
  std::vector<std::thread> writers;
  for (uint64_t w = 0; w < 3; ++w) {
    writers.emplace_back([&, w] {
      for (uint64_t i = 0; i < kEach; ++i) ring.Write(Numbered::Of(w * kEach + i));
    });
  }
  for (std::thread& writer : writers) writer.join();
  std::vector<Numbered> events;
  EXPECT_EQ(ring.Read(0, &events), 3 * kEach);
  std::set<uint64_t> numbers;
  for (const Numbered& event : events) {
    EXPECT_TRUE(event.IsWhole());
    numbers.insert(event.number);
  }
  EXPECT_EQ(numbers.size(), 3 * kEach);
}

}  // namespace
}  // namespace lockstep
