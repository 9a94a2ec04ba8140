// What one rank's communicators of a world have in common: the world's own, and those split from it. A failure of one
// is a failure of all, on all ranks: whoever fails in one declares it in the world's, too, at which all waits look. Any
// thread.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

class Group;
class Recorder;

class Family {
 public:
  Family();
  ~Family();

  // `group` is this rank's view of one more communicator. The first is the world's, and stays until the family is gone,
  // so that failures can still be read when its communicator is destroyed.
  void Add(std::shared_ptr<Group> group);
  void Remove(const Group* group);

  // Where this rank records what it does; set before the first communicator is added, and as old as the family.
  void Keep(std::unique_ptr<Recorder> recorder);
  Recorder* recorder() const { return recorder_.get(); }

  // The world's; null while there is none.
  Group* root() const { return root_.get(); }

  // Declares all groups but `from` failed, for which a rank of the world is to blame.
  void Spread(const Group* from, int culprit, const absl::Status& status);
  // After a failure: waits until nobody touches operands of this rank in any of them.
  void AwaitUntouched();

  // Numbers for communicators that exchange messages: those of two communicators with a rank in common are different.
  uint32_t next_channel() const { return next_channel_; }
  void UseChannel(uint32_t channel) { next_channel_ = channel + 1; }

  // Notes that this rank's caller gets an error; whether it has got one before.
  bool NoteError() { return has_error_.exchange(true); }

 private:
  std::vector<std::shared_ptr<Group>> Groups();

  std::unique_ptr<Recorder> recorder_;
  std::shared_ptr<Group> root_;                 // set once, before others are added; shared with its communicator
  std::mutex mutex_;                            // guards groups_
  std::vector<std::shared_ptr<Group>> groups_;  // shared with their communicators
  std::atomic<bool> has_error_ = false;
  uint32_t next_channel_ = 1;  // used by the rank's own thread alone; 0 is the world's
};

}  // namespace lockstep
