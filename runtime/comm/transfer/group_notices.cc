#include "runtime/comm/transfer/group_notices.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "runtime/process/clock.h"

namespace lockstep {
namespace {

constexpr absl::Duration kFlush = absl::Milliseconds(300);
constexpr absl::Duration kAskAgain = absl::Milliseconds(50);
// after which other ranks report in place of the reporter
constexpr absl::Duration kReporterTime = absl::Milliseconds(200);

}  // namespace

GroupNotices::GroupNotices(Group* group, Links* links)
    : group_(*group), links_(*links), begins_(links->group_begins()) {
  begins_.push_back(group_.world_size());
}

int GroupNotices::GroupOf(int rank) const {
  return static_cast<int>(std::upper_bound(begins_.begin(), begins_.end(), rank) - begins_.begin()) - 1;
}

bool GroupNotices::HasLeft(int rank) const {
  return std::find(left_.begin(), left_.end(), GroupOf(rank)) != left_.end();
}

void GroupNotices::NotifyOthers(const Links::Notice& notice) {
  const int here = GroupOf(group_.world_rank());
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (GroupOf(rank) != here && !HasLeft(rank)) links_.SendNotice(rank, notice);
  }
}

void GroupNotices::Take(const Links::Notice& notice) {
  using Kind = Links::Notice::Kind;
  switch (notice.kind) {
    case Kind::kFailed:
      if (group_.failure().ok()) {
        (void)group_.Fail(notice.rank, notice.status);
        group_.MarkNotified();  // the sender notifies all ranks
      }
      break;
    case Kind::kLeft: left_.push_back(GroupOf(notice.from)); break;
    case Kind::kQuestion:
      links_.SendNotice(notice.from, {.kind = Kind::kAnswer, .rank = group_.waits_for(), .status = {}});
      break;
    case Kind::kAnswer:
      inquiries_[notice.from].reply = {
          notice.rank < 0 ? BlameSearch::Reply::Kind::kBusy : BlameSearch::Reply::Kind::kWaits, notice.rank};
      break;
  }
}

absl::Status GroupNotices::Poll() {
  while (std::optional<Links::Notice> notice = links_.PollNotice()) Take(*notice);
  absl::Status failure = group_.failure();
  if (failure.ok() || notified_) return failure;
  // A failure of the world's communicator is announced by its own notices. Its record may be readable before that of
  // this communicator is written.
  const Failure* record = group_.failure_here();
  if (record == nullptr) return failure;
  failed_since_ = std::min(failed_since_, SteadyNow());
  if (record->notified.load() != 0) {
    notified_ = true;
  } else if (record->reporter == group_.world_rank() || SteadyNow() - failed_since_ >= kReporterTime) {
    notified_ = true;
    NotifyOthers({.kind = Links::Notice::Kind::kFailed, .rank = record->culprit, .status = failure});
    group_.MarkNotified();
  }
  return failure;
}

BlameSearch::Reply GroupNotices::Ask(int rank, bool first) {
  Inquiry& inquiry = inquiries_[rank];
  if (first) inquiry.reply = {};
  const absl::Duration now = SteadyNow();
  if (first || now - inquiry.asked >= kAskAgain) {
    inquiry.asked = now;
    links_.SendNotice(rank, {.kind = Links::Notice::Kind::kQuestion, .status = {}});
  }
  return inquiry.reply;
}

void GroupNotices::Leave(bool last_of_group) {
  const bool failed = !Poll().ok();
  if (!failed && last_of_group) NotifyOthers({.kind = Links::Notice::Kind::kLeft, .status = {}});
  const absl::Duration end = SteadyNow() + (failed ? kFlush : absl::ZeroDuration());
  do {
    (void)Poll();  // lets the transport make progress
    if (failed) absl::SleepFor(absl::Milliseconds(5));
  } while (SteadyNow() < end);
}

}  // namespace lockstep
