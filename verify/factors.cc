#include "verify/factors.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "core/check.h"

namespace lockstep::verify {
namespace {

// The `number`-th smallest size of at least `least` that shares with `ranks` what `size` does; `size` if there is none
// below.
int64_t SmallSize(int64_t size, int64_t ranks, int64_t number, int64_t least = 2) {
  for (int64_t small = least; small < size; ++small) {
    if (std::gcd(small, ranks) == std::gcd(size, ranks) && number-- == 0) return small;
  }
  return size;
}

}  // namespace

Extent Factors::New(int64_t size) {
  if (size == 1) return {};
  Factor& factor = factors_.emplace_back();
  factor.size = factor.chosen = size;
  factor.is_fixed = size == 0;
  return {static_cast<int>(factors_.size()) - 1};
}

Extent Factors::Fixed(int64_t size) {
  const Extent extent = New(size);
  Fix(extent);
  for (int ratio : extent) factors_[static_cast<size_t>(ratio)].is_ratio = true;
  return extent;
}

int Factors::Root(int factor) const {
  while (factors_[static_cast<size_t>(factor)].parent >= 0) factor = factors_[static_cast<size_t>(factor)].parent;
  return factor;
}

Extent Factors::Resolved(const Extent& extent) const {
  Extent resolved;
  for (int factor : extent) {
    const int root = Root(factor);
    const Extent& parts = factors_[static_cast<size_t>(root)].parts;
    const Extent found = parts.empty() ? Extent{root} : Resolved(parts);
    resolved.insert(resolved.end(), found.begin(), found.end());
  }
  return resolved;
}

void Factors::Unify(const Extent& a, const Extent& b) {
  LOCKSTEP_CHECK(OldSize(a) == OldSize(b)) << OldSize(a) << " and " << OldSize(b);
  if (OldSize(a) == 0) return Fix(a), Fix(b);
  for (;;) {
    const Extent x = Resolved(a), y = Resolved(b);
    const auto [f, g] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
    if (f == x.end() || g == y.end()) return;
    const int64_t m = OldSize({*f}), n = OldSize({*g});
    if (m == n) Merge(*f, *g);
    else if (m % n == 0) Split(*f, *g);
    else if (n % m == 0) Split(*g, *f);
    else return Fix(Extent(f, x.end())), Fix(Extent(g, y.end()));
  }
}

void Factors::Merge(int a, int b) {
  Factor &to = factors_[static_cast<size_t>(a)], &from = factors_[static_cast<size_t>(b)];
  if (to.is_fixed || from.is_fixed) {
    Fix({a});
    Fix({b});
  }
  from.parent = a;
  auto follows = std::exchange(to.follows, nullptr);
  auto sources = std::exchange(to.sources, {});
  FollowUnlessCircular(a, std::exchange(from.follows, nullptr), std::exchange(from.sources, {}));
  if (follows) FollowUnlessCircular(a, std::move(follows), std::move(sources));
}

void Factors::Split(int whole, int part) {
  const bool is_fixed = factors_[static_cast<size_t>(whole)].is_fixed || factors_[static_cast<size_t>(whole)].follows;
  if (is_fixed) {
    Fix({whole});
    Fix({part});
  }
  const int64_t rest = OldSize({whole}) / OldSize({part});
  Extent parts = is_fixed ? Fixed(rest) : New(rest);
  parts.insert(parts.begin(), part);
  factors_[static_cast<size_t>(whole)].parts = std::move(parts);
  Factor& first = factors_[static_cast<size_t>(part)];
  FollowUnlessCircular(part, std::exchange(first.follows, nullptr), std::exchange(first.sources, {}));
}

void Factors::Fix(const Extent& extent) {
  for (int root : Resolved(extent)) {
    Factor& factor = factors_[static_cast<size_t>(root)];
    factor.is_fixed = true;
    factor.follows = nullptr;
    for (const Extent& source : std::exchange(factor.sources, {})) Fix(source);
  }
}

void Factors::Follow(const Extent& extent, std::vector<Extent> sources, std::function<int64_t()> size) {
  for (int root : Resolved(extent)) {
    if (factors_[static_cast<size_t>(root)].is_fixed) {
      for (const Extent& source : sources) Fix(source);
    } else {
      FollowUnlessCircular(root, size, sources);
    }
  }
}

void Factors::FollowUnlessCircular(int factor, std::function<int64_t()> follows, std::vector<Extent> sources) {
  std::vector<char> seen(factors_.size());
  if (!follows || factors_[static_cast<size_t>(factor)].is_fixed || DependsOn(sources, factor, seen)) return;
  factors_[static_cast<size_t>(factor)].follows = std::move(follows);
  factors_[static_cast<size_t>(factor)].sources = std::move(sources);
}

bool Factors::DependsOn(const std::vector<Extent>& sources, int factor, std::vector<char>& seen) const {
  const Extent targets = Resolved({factor});
  for (const Extent& source : sources) {
    for (int root : Resolved(source)) {
      if (std::find(targets.begin(), targets.end(), root) != targets.end()) return true;
      if (std::exchange(seen[static_cast<size_t>(root)], 1)) continue;
      if (DependsOn(factors_[static_cast<size_t>(root)].sources, factor, seen)) return true;
    }
  }
  return false;
}

int64_t Factors::OldSize(const Extent& extent) const {
  int64_t size = 1;
  for (int factor : extent) size *= factors_[static_cast<size_t>(factor)].size;
  return size;
}

int64_t Factors::NewSize(const Extent& extent) const {
  int64_t size = 1;
  for (int root : Resolved(extent)) size *= NewSizeOf(root);
  return size;
}

int64_t Factors::NewSizeOf(int root) const {
  const Factor& factor = factors_[static_cast<size_t>(root)];
  if (factor.is_fixed || std::find(restored_.begin(), restored_.end(), root) != restored_.end()) return factor.size;
  if (!factor.follows) return factor.chosen;
  if (!factor.found) factor.found = factor.follows();
  return *factor.found;
}

bool Factors::IsFree(int root) const {
  const Factor& factor = factors_[static_cast<size_t>(root)];
  return factor.parent < 0 && factor.parts.empty() && !factor.is_fixed && !factor.follows;
}

Extent Factors::Free(const Extent& extent) const {
  Extent free = Resolved(extent);
  std::erase_if(free, [&](int root) { return factors_[static_cast<size_t>(root)].is_fixed; });
  return free;
}

void Factors::Restore(Extent factors) {
  restored_ = std::move(factors);
  ForgetSizes();
}

void Factors::ForgetSizes() {
  for (Factor& factor : factors_) factor.found.reset();
}

std::vector<int> Factors::FreeSources(int root) const {
  std::vector<int> free, open = {root};
  std::set<int> seen = {root};
  while (!open.empty()) {
    const int next = open.back();
    open.pop_back();
    if (IsFree(next)) free.push_back(next);
    for (const Extent& source : factors_[static_cast<size_t>(next)].sources) {
      for (int each : Resolved(source)) {
        if (seen.insert(each).second) open.push_back(each);
      }
    }
  }
  return free;
}

void Factors::ChooseSizes(int64_t ranks, const std::vector<Extent>& first) {
  ChooseFreeSizes(ranks, first);
  for (size_t i = 0; i < factors_.size();) {
    if (Keeps(i, ranks) || GrowSources(i, ranks)) {
      ++i;
    } else {
      Fix({static_cast<int>(i)});
      ForgetSizes();
      i = 0;  // sources of earlier ones may have changed
    }
  }
}

void Factors::ChooseFreeSizes(int64_t ranks, const std::vector<Extent>& first) {
  ForgetSizes();
  std::set<std::pair<int, int64_t>> order;  // of old sizes: those of `first`, then increasing
  for (const Extent& extent : first) {
    for (int root : Free(extent)) order.insert({0, factors_[static_cast<size_t>(root)].size});
  }
  std::set<int64_t> taken;
  for (size_t i = 0; i < factors_.size(); ++i) {
    if (IsFree(static_cast<int>(i))) order.insert({1, factors_[i].size});
    if (factors_[i].is_fixed && !factors_[i].is_ratio) taken.insert(factors_[i].size);
  }
  std::map<int64_t, int64_t> chosen;  // by old size
  for (const auto& [is_other, size] : order) {
    if (chosen.contains(size)) continue;
    int64_t number = 0;
    while (number < kMostSizes && taken.contains(SmallSize(size, ranks, number))) ++number;
    chosen[size] = SmallSize(size, ranks, number % kMostSizes);
    taken.insert(chosen[size]);
  }
  for (size_t i = 0; i < factors_.size(); ++i) {
    if (IsFree(static_cast<int>(i))) factors_[i].chosen = chosen.at(factors_[i].size);
  }
}

bool Factors::Keeps(size_t i, int64_t ranks) const {
  const Factor& factor = factors_[i];
  if (!factor.follows || factor.parent >= 0) return true;
  const int64_t size = NewSizeOf(static_cast<int>(i));
  return size >= 2 && std::gcd(size, ranks) == std::gcd(factor.size, ranks);
}

bool Factors::GrowSources(size_t last, int64_t ranks) {
  std::vector<int> sources = FreeSources(static_cast<int>(last));
  std::sort(sources.rbegin(), sources.rend());  // earlier sizes rarely follow from later sources
  constexpr int kFew = 16, kAll = std::numeric_limits<int>::max();
  return std::any_of(sources.begin(), sources.end(), [&](int source) { return Grow({source}, last, ranks, kFew); }) ||
         Grow(sources, last, ranks, kAll);
}

bool Factors::Grow(const std::vector<int>& sources, size_t last, int64_t ranks, int most_steps) {
  constexpr int kSmallSteps = 64;  // then sizes are doubled
  std::vector<int64_t> before;
  for (int source : sources) before.push_back(factors_[static_cast<size_t>(source)].chosen);
  bool has_grown = true;
  for (int step = 0; step < most_steps && has_grown; ++step) {
    has_grown = false;
    for (int source : sources) {
      Factor& each = factors_[static_cast<size_t>(source)];
      const int64_t least = step < kSmallSteps ? each.chosen + 1 : each.chosen * 2;
      const int64_t size = SmallSize(each.size, ranks, 0, least);
      has_grown |= std::exchange(each.chosen, size) != size;
    }
    ForgetSizes();
    bool keeps = true;
    for (size_t i = 0; i <= last && keeps; ++i) keeps = Keeps(i, ranks);
    if (keeps) return true;
  }
  for (size_t i = 0; i < sources.size(); ++i) factors_[static_cast<size_t>(sources[i])].chosen = before[i];
  ForgetSizes();
  return false;
}

}  // namespace lockstep::verify
