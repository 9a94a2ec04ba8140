// The groups of one rank's communicators in a world: the world's own communicator, and those split from it. A failure
// of one is a failure of all, on all ranks: a rank that fails in one communicator also declares the failure in the
// world's, which all waits check. Any thread.

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

class WorldGroups {
 public:
  WorldGroups();
  ~WorldGroups();

  // Adds `group`, this rank's view of one more communicator. The first is the world's. It lives until this object is
  // destroyed, so that failures can still be read after its communicator was destroyed.
  void Add(std::shared_ptr<Group> group);
  void Remove(const Group* group);

  // Sets the recorder of this rank, before the first communicator is added. It lives as long as this object.
  void SetRecorder(std::unique_ptr<Recorder> recorder);
  Recorder* recorder() const { return recorder_.get(); }

  // The world's group; null before the first Add.
  Group* world() const { return world_.get(); }

  // Declares all groups except `from` failed. `culprit` is a rank of the world.
  void FailAllExcept(const Group* from, int culprit, const absl::Status& status);
  // After a failure: waits until no one touches operands of this rank in any of the groups.
  void AwaitUntouched();

  // Numbers of communicators that exchange messages. Two communicators with a common rank have different numbers.
  uint32_t next_channel() const { return next_channel_; }
  void UseChannel(uint32_t channel) { next_channel_ = channel + 1; }

  // Records that this rank's caller gets an error. Returns true if it has got one before.
  bool NoteError() { return has_error_.exchange(true); }

 private:
  std::vector<std::shared_ptr<Group>> Groups();

  std::unique_ptr<Recorder> recorder_;
  std::shared_ptr<Group> world_;                // set once, before other groups are added; shared with its communicator
  std::mutex mutex_;                            // guards groups_
  std::vector<std::shared_ptr<Group>> groups_;  // shared with their communicators
  std::atomic<bool> has_error_ = false;
  uint32_t next_channel_ = 1;  // used only by the rank's own thread; 0 is the world's
};

}  // namespace lockstep
