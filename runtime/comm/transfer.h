// One chunk of a collective on its way along the chain of groups (chain.h), as the rank that carries it in its group
// sees it. Used by the rank's progress thread.

#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/comm/chunks.h"
#include "runtime/comm/group.h"
#include "runtime/comm/links.h"
#include "runtime/comm/notices.h"

namespace lockstep {

// Chunks use tags below 2 * kChunkTags, in turn.
inline constexpr uint32_t kChunkTags = 8192;

class Transfer {
 public:
  // What chunks of a collective have in common. All are borrowed.
  struct Context {
    Group& group;
    Links& links;
    const Notices& notices;  // knows which rank is in which group
    const Operands& operands;
  };

  Transfer(const Context& context, uint32_t index, const Chunk& chunk);

  // Copies or receives what this rank needs first. Once, before Step.
  absl::Status Begin();
  // Looks at what is under way, and goes on if it has come: true if something happened.
  absl::StatusOr<bool> Step();
  // Nothing is left to do.
  bool done() const { return done_; }
  // For whom it waits: the rank that sends, or, if all has come, those that have not taken what was sent.
  std::vector<int> Missing() const;

 private:
  struct Outgoing {
    int to;
    std::unique_ptr<LinkRequest> request;
  };

  int Carrier(int group) const;
  bool IsReduction() const;
  absl::Status HavePrefix();
  absl::Status HaveResult();
  absl::Status SendPrefix();
  absl::Status SendResult();
  absl::Status SendResultTo(int group);

  const Context context_;
  const uint32_t index_;
  const Chunk chunk_;
  const int here_;         // this rank's group
  int source_ = 0;         // the group from which the result spreads; of a reduction the last
  int last_up_ = 0;        // the groups at which the result stops, upwards
  int last_down_ = 0;      // and downwards
  MessageBuffer partial_;  // of a reduction: the sum of the groups below, then with this one
  MessageBuffer result_;
  std::unique_ptr<LinkRequest> prefix_receive_, result_receive_;
  std::vector<Outgoing> sends_;
  bool done_ = false;
};

}  // namespace lockstep
