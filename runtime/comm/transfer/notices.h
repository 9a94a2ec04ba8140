// What groups of ranks that share no memory tell each other besides data: that the world has failed, that a group is
// gone, and for whom a rank waits. A failure reaches every rank of every other group by a message of its own, so that
// it does not matter which of them is stopped. Used by the rank's progress thread.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/comm/host/group.h"
#include "runtime/comm/network/links.h"

namespace lockstep {

class Notices {
 public:
  // Both are borrowed and must outlive this.
  Notices(Group* group, Links* links);

  // To be called now and then: takes notice of what others tell, answers what they ask, and tells them of this group's
  // failure. Returns the failure.
  absl::Status Poll();

  // For whom a rank of another group waits, as it says itself. Asks it again and again as long as this is called.
  Search::Reply Ask(int rank, bool first);

  // Whether all ranks of that rank's group are gone.
  bool HasLeft(int rank) const;

  // At the end: tells the other groups that this one is done (if `last_of_group`) or has failed, and gives the messages
  // a moment to leave.
  void Leave(bool last_of_group);

  int GroupOf(int rank) const;
  int GroupSize(int group) const { return begins_[group + 1] - begins_[group]; }
  int groups() const { return static_cast<int>(begins_.size()) - 1; }
  // First rank of each group, and the world's size.
  const std::vector<int>& begins() const { return begins_; }

 private:
  struct Inquiry {
    absl::Duration asked;  // when last
    Search::Reply reply;
  };
  void Take(const Links::Notice& notice);
  void TellOthers(const Links::Notice& notice);  // all ranks of the groups that are still there

  Group& group_;
  Links& links_;
  std::vector<int> begins_;
  std::vector<int> left_;  // groups that are gone
  bool told_ = false;      // the other groups know of the failure
  absl::Duration failed_since_ = absl::InfiniteDuration();
  std::map<int, Inquiry> inquiries_;  // by rank
};

}  // namespace lockstep
