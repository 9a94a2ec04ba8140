// The division of the rows of a batch that is not full among ranks, for the tests of this folder.

#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "test/random_graph/random.h"
#include "test/random_graph/random_model.h"

namespace lockstep {

// The number of rows of each rank, and the largest possible number.
struct Shares {
  std::vector<int64_t> rows;
  int64_t most;

  int64_t ranks() const { return static_cast<int64_t>(rows.size()); }
  int64_t total() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }
  std::string ToString() const {
    std::string text = std::to_string(rows.size()) + " ranks of at most " + std::to_string(most) + " rows, which have";
    for (int64_t number : rows) text += " " + std::to_string(number);
    return text;
  }
};

inline Shares EqualShares(Random& random, int64_t ranks) {
  const int64_t rows = (ranks == 1 ? 2 : 1) + random.Below(3);
  return {std::vector<int64_t>(static_cast<size_t>(ranks), rows), rows + random.Below(2)};
}

// If there are several ranks, at least one has no rows. There are at least two rows, so that they have a variance.
inline Shares UnevenShares(Random& random, int64_t ranks) {
  Shares shares{std::vector<int64_t>(static_cast<size_t>(ranks)), 2 + random.Below(3)};
  const int64_t none = ranks == 1 ? -1 : random.Below(ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (rank != none) shares.rows[static_cast<size_t>(rank)] = random.Below(shares.most + 1);
  }
  while (shares.total() < 2) {
    const int64_t rank = random.Below(ranks);
    if (rank != none) ++shares.rows[static_cast<size_t>(rank)];
  }
  return shares;
}

// The rows of each rank follow those of the rank before it; after the last row comes the first again.
inline std::vector<int64_t> RowsOf(const Shares& shares, int64_t rank) {
  int64_t row = std::accumulate(shares.rows.begin(), shares.rows.begin() + rank, int64_t{0});
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < shares.rows[static_cast<size_t>(rank)]; ++i) rows.push_back(row++ % kModelRows);
  return rows;
}

inline std::vector<int64_t> AllRows(const Shares& shares) {
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < shares.ranks(); ++rank) {
    const std::vector<int64_t> own = RowsOf(shares, rank);
    rows.insert(rows.end(), own.begin(), own.end());
  }
  return rows;
}

}  // namespace lockstep
