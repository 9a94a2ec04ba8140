// The last events of a rank, in memory that other processes may read during writes: a ring of places, each with a stamp
// that identifies its event. Any number of threads write, without locks, in tens of nanoseconds. If a writer dies, all
// other events remain readable. A reader takes only events whose stamp is the same before and after copying, so it
// never sees a partial event.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace lockstep {

template <typename Event>
class Ring {
  static_assert(std::is_trivially_copyable_v<Event> && sizeof(Event) % sizeof(uint64_t) == 0);
  static constexpr size_t kWords = sizeof(Event) / sizeof(uint64_t);

 public:
  Ring() = default;
  // `memory` has Bytes(places), aligned to 64 bytes. Zeros are an empty ring. `places` is a power of 2.
  Ring(std::byte* memory, uint64_t places)
      : written_(reinterpret_cast<Word*>(memory)),
        places_(reinterpret_cast<Place*>(memory + kHeaderBytes)),
        mask_(places - 1) {}

  static constexpr size_t Bytes(uint64_t places) { return kHeaderBytes + places * sizeof(Place); }

  // The number of events whose writing has begun.
  uint64_t written() const { return written_->load(std::memory_order_acquire); }
  uint64_t places() const { return mask_ + 1; }

  void Write(const Event& event) {
    const uint64_t number = written_->fetch_add(1, std::memory_order_relaxed);
    Place& place = places_[number & mask_];
    std::array<uint64_t, kWords> words;
    std::memcpy(words.data(), &event, sizeof(event));
    place.stamp.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // a reader that sees a new word does not see the old stamp
    for (size_t i = 0; i < kWords; ++i) place.words[i].store(words[i], std::memory_order_relaxed);
    place.stamp.store(number + 1, std::memory_order_release);
  }

  // Appends the remaining events from number `first` on, in order. Returns the number after the last one that was
  // checked: stops at an event that is being written, and skips overwritten ones.
  uint64_t Read(uint64_t first, std::vector<Event>* events) const {
    const uint64_t end = written();
    uint64_t number = end > places() && first < end - places() ? end - places() : first;
    for (; number < end; ++number) {
      const Place& place = places_[number & mask_];
      const uint64_t stamp = place.stamp.load(std::memory_order_acquire);
      if (stamp < number + 1 && written() <= number + places()) break;
      if (stamp != number + 1) continue;
      std::array<uint64_t, kWords> words;
      for (size_t i = 0; i < kWords; ++i) words[i] = place.words[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (place.stamp.load(std::memory_order_relaxed) != number + 1) continue;
      std::memcpy(static_cast<void*>(&events->emplace_back()), words.data(), sizeof(Event));
    }
    return number;
  }

  // Appends all remaining events, in order. Returns how many earlier ones are overwritten.
  uint64_t ReadAll(std::vector<Event>* events) const {
    const size_t before = events->size();
    return Read(0, events) - (events->size() - before);
  }

 private:
  using Word = std::atomic<uint64_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint64_t));
  static constexpr size_t kHeaderBytes = 64;
  struct Place {
    Word stamp;  // 1 + the event's number; 0: it is being written
    std::array<Word, kWords> words;
  };

  Word* written_ = nullptr;
  Place* places_ = nullptr;
  uint64_t mask_ = 0;
};

}  // namespace lockstep
