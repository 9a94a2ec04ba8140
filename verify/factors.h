// The sizes of dimensions as products of factors. Two dimensions that must be equal share their factors: [768] that is
// reshaped to [12, 64] becomes the product of a factor 12 and a factor 64. A smaller size of each factor then makes a
// program smaller without changing how its dimensions follow from each other.
//
// Thread-compatible.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace lockstep::verify {

// A size as a product of factors, by their numbers, in row-major order. The empty product is 1.
using Extent = std::vector<int>;

class Factors {
 public:
  // An extent of this size: a new factor, which may become smaller; or the ratio of two extents, which keeps its size.
  Extent New(int64_t size);
  Extent Fixed(int64_t size);

  // Makes two extents of equal sizes the same extent. Where their factors do not fit each other, these keep their
  // sizes.
  void Unify(const Extent& a, const Extent& b);
  // The factors of the extent, and those from which they follow, keep their sizes.
  void Fix(const Extent& extent);
  // The new size of the extent, a single factor, follows from those of `sources`, as a height after a convolution does:
  // `size` returns it, or 0 if there is none. It calls NewSize of the sources.
  void Follow(const Extent& extent, std::vector<Extent> sources, std::function<int64_t()> size);

  // Chooses the new size of each factor that neither is fixed nor follows: the smallest of at least 2 with the greatest
  // common divisor with `ranks` that the old size has, so that it can be split as before; and another one than those of
  // other old sizes and of fixed factors, within `kMostSizes` of the smallest. Factors of `first` are the first to
  // choose. Sizes become larger until those that follow from them are at least 2 and can be split as before, too. Where
  // no larger ones are found, the factor that follows is fixed.
  void ChooseSizes(int64_t ranks, const std::vector<Extent>& first);

  int64_t OldSize(const Extent& extent) const;
  int64_t NewSize(const Extent& extent) const;
  // The factors of which the extent consists now, without those that are fixed.
  Extent Free(const Extent& extent) const;
  // True if the size of one of these follows from those of others.
  bool IsFollower(int factor) const { return factors_[static_cast<size_t>(factor)].follows != nullptr; }

  // Until it is called again, NewSize takes the old sizes of these factors, also for those that follow from them.
  void Restore(Extent factors);

 private:
  static constexpr int kMostSizes = 12;
  struct Factor {
    int64_t size = 1, chosen = 1;
    bool is_fixed = false;
    bool is_ratio = false;             // it is no dimension itself
    int parent = -1;                   // the factor that it is, too
    Extent parts;                      // if not empty: the factors whose product it is
    std::function<int64_t()> follows;  // null if it does not
    std::vector<Extent> sources;
    mutable std::optional<int64_t> found;  // the size that follows
  };

  int Root(int factor) const;
  Extent Resolved(const Extent& extent) const;
  void Merge(int a, int b);
  void Split(int whole, int part);  // a factor into `part` and another one
  bool DependsOn(const std::vector<Extent>& sources, int factor, std::vector<char>& seen) const;
  void FollowUnlessCircular(int factor, std::function<int64_t()> follows, std::vector<Extent> sources);
  bool IsFree(int root) const;
  void ForgetSizes();
  int64_t NewSizeOf(int root) const;
  std::vector<int> FreeSources(int root) const;
  void ChooseFreeSizes(int64_t ranks, const std::vector<Extent>& first);
  // True unless factor `i` follows and its new size is below 2, or cannot be split as the old one.
  bool Keeps(size_t i, int64_t ranks) const;
  // Chooses larger sizes of what factor `last` follows from, until all factors up to `last` keep. Returns false, and
  // changes nothing, if there are none.
  bool GrowSources(size_t last, int64_t ranks);
  bool Grow(const std::vector<int>& sources, size_t last, int64_t ranks, int most_steps);

  std::vector<Factor> factors_;
  Extent restored_;
};

}  // namespace lockstep::verify
