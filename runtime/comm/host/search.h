// Who is to blame when ranks do not come. A rank that itself waits for another is not: the search goes from those that
// one waits for to those that they wait for, until it is at ranks that wait for nobody (they have not arrived) or give
// no sign of life. One search is used by one thread.

#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace lockstep {

class Search {
 public:
  // What is known of a rank since one has begun to ask it.
  struct Reply {
    enum class Kind { kNone, kBusy, kWaits } kind = Kind::kNone;  // no sign of life; waits for nobody; waits for `rank`
    int rank = -1;
  };
  // Asks a rank of the world; `first`: what was known before does not count. Returns at once.
  using Ask = std::function<Reply(int rank, bool first)>;

  struct Culprit {
    int rank = 0;
    bool silent = false;  // it gave no sign of life
    bool operator==(const Culprit&) const = default;
  };

  // `self` waits for `late`, ranks of the world. A rank counts as busy or silent when it has been so for `grace`.
  Search(int self, const std::vector<int>& late, absl::Duration grace, Ask ask);

  // To be called now and then. The culprits, of which there is at least one if there was a late rank, when they are
  // found.
  std::optional<std::vector<Culprit>> Poll();

 private:
  struct Trail {
    std::vector<int> ranks;  // from the late rank to where the trail is now
    absl::Duration since;    // when the last of them was asked first
    bool asked = false;
    bool is_circle = false;  // it has come back to a rank that it has passed
    std::optional<Culprit> end;
  };
  void Follow(Trail& trail);

  const int self_;
  const absl::Duration grace_;
  const Ask ask_;
  std::vector<Trail> trails_;
};

}  // namespace lockstep
