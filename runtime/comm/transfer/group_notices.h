// Messages besides data between groups of ranks that share no memory: the world has failed, a group has left, and for
// whom a rank waits. A failure is sent to every rank of every other group separately, so that a stopped rank does not
// delay the others. Used by the rank's progress thread.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/comm/host/group.h"
#include "runtime/comm/network/links.h"

namespace lockstep {

class GroupNotices {
 public:
  // Both are borrowed and must outlive this object.
  GroupNotices(Group* group, Links* links);

  // Call it from time to time. Processes received notices, answers questions, and notifies other groups of this group's
  // failure. Returns the failure.
  absl::Status Poll();

  // Returns for whom a rank of another group waits, according to its last answer. Repeats the question while this is
  // called.
  BlameSearch::Reply Ask(int rank, bool first);

  // Returns true if all ranks of that rank's group have left.
  bool HasLeft(int rank) const;

  // Call it at the end. Notifies the other groups that this one is done (if `last_of_group`) or has failed, and gives
  // the messages a moment to leave.
  void Leave(bool last_of_group);

  int GroupOf(int rank) const;
  int GroupSize(int group) const { return begins_[group + 1] - begins_[group]; }
  int groups() const { return static_cast<int>(begins_.size()) - 1; }
  // The first rank of each group, and the world's size.
  const std::vector<int>& begins() const { return begins_; }

 private:
  struct Inquiry {
    absl::Duration asked;  // the time of the last question
    BlameSearch::Reply reply;
  };
  void Take(const Links::Notice& notice);
  void NotifyOthers(const Links::Notice& notice);  // to all ranks of the groups that have not left

  Group& group_;
  Links& links_;
  std::vector<int> begins_;
  std::vector<int> left_;  // groups that have left
  bool notified_ = false;  // the other groups have been notified of the failure
  absl::Duration failed_since_ = absl::InfiniteDuration();
  std::map<int, Inquiry> inquiries_;  // by rank
};

}  // namespace lockstep
