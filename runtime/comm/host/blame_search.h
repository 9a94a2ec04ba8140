// Finds the rank to blame when ranks do not arrive. A rank that itself waits for another is not to blame: the search
// goes from the late ranks to those for which they wait, until it reaches ranks that wait for no one (they have not
// arrived) or give no sign of life. One thread uses a search.

#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace lockstep {

class BlameSearch {
 public:
  // The facts about a rank since it was first asked.
  struct Reply {
    enum class Kind { kNone, kBusy, kWaits } kind = Kind::kNone;  // no sign of life; waits for no one; waits for `rank`
    int rank = -1;
  };
  // Asks a rank of the world. With `first`, earlier facts do not count. Returns at once.
  using Ask = std::function<Reply(int rank, bool first)>;

  struct Culprit {
    int rank = 0;
    bool silent = false;  // gave no sign of life
    bool operator==(const Culprit&) const = default;
  };

  // `self` waits for `late`, ranks of the world. A rank counts as busy or silent after being so for `grace`.
  BlameSearch(int self, const std::vector<int>& late, absl::Duration grace, Ask ask);

  // Call it from time to time. Returns the culprits when they are found: at least one if there was a late rank.
  std::optional<std::vector<Culprit>> Poll();

 private:
  struct Trail {
    std::vector<int> ranks;  // from the late rank to the present end of the trail
    absl::Duration since;    // time of the first question to the last of them
    bool asked = false;
    bool is_circle = false;  // the trail has returned to one of its ranks
    std::optional<Culprit> end;
  };
  void Follow(Trail& trail);

  const int self_;
  const absl::Duration grace_;
  const Ask ask_;
  std::vector<Trail> trails_;
};

}  // namespace lockstep
