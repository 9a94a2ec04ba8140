#include "runtime/comm/host/world_groups.h"

#include <utility>

#include "runtime/comm/host/group.h"
#include "runtime/record/recorder.h"

namespace lockstep {

WorldGroups::WorldGroups() = default;
WorldGroups::~WorldGroups() = default;

void WorldGroups::SetRecorder(std::unique_ptr<Recorder> recorder) { recorder_ = std::move(recorder); }

void WorldGroups::Add(std::shared_ptr<Group> group) {
  if (world_ == nullptr) world_ = group;
  std::lock_guard<std::mutex> lock(mutex_);
  groups_.push_back(std::move(group));
}

void WorldGroups::Remove(const Group* group) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(groups_, [group](const std::shared_ptr<Group>& each) { return each.get() == group; });
}

std::vector<std::shared_ptr<Group>> WorldGroups::Groups() {
  std::lock_guard<std::mutex> lock(mutex_);
  return groups_;
}

void WorldGroups::FailAllExcept(const Group* from, int culprit, const absl::Status& status) {
  // The world's first, even if its communicator is destroyed, because all ranks check it.
  if (world_ != nullptr && world_.get() != from) (void)world_->FailHere(culprit, status);
  for (const std::shared_ptr<Group>& group : Groups()) {
    if (group.get() != from) (void)group->FailHere(-1, status);
  }
}

void WorldGroups::AwaitUntouched() {
  for (const std::shared_ptr<Group>& group : Groups()) group->AwaitUntouchedHere();
}

}  // namespace lockstep
