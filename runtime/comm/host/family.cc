#include "runtime/comm/host/family.h"

#include <utility>

#include "runtime/comm/host/group.h"
#include "runtime/record/recorder.h"

namespace lockstep {

Family::Family() = default;
Family::~Family() = default;

void Family::Keep(std::unique_ptr<Recorder> recorder) { recorder_ = std::move(recorder); }

void Family::Add(std::shared_ptr<Group> group) {
  if (root_ == nullptr) root_ = group;
  std::lock_guard<std::mutex> lock(mutex_);
  groups_.push_back(std::move(group));
}

void Family::Remove(const Group* group) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(groups_, [group](const std::shared_ptr<Group>& each) { return each.get() == group; });
}

std::vector<std::shared_ptr<Group>> Family::Groups() {
  std::lock_guard<std::mutex> lock(mutex_);
  return groups_;
}

void Family::Spread(const Group* from, int culprit, const absl::Status& status) {
  // The world's first, even if its communicator is destroyed, because all ranks check it.
  if (root_ != nullptr && root_.get() != from) (void)root_->FailHere(culprit, status);
  for (const std::shared_ptr<Group>& group : Groups()) {
    if (group.get() != from) (void)group->FailHere(-1, status);
  }
}

void Family::AwaitUntouched() {
  for (const std::shared_ptr<Group>& group : Groups()) group->AwaitUntouchedHere();
}

}  // namespace lockstep
