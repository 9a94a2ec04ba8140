// A setting: a number of a program that may change between runs without compiling it anew, such as a learning rate. It
// is an input, an f64 scalar that all ranks share, with a value that holds until another is set, and a range. Plain
// values; any thread.

#pragma once

#include <cmath>
#include <string>

namespace lockstep {

// Which numbers a setting or a float attribute may be; never NaN or an infinity.
struct NumberRange {
  double low = -HUGE_VAL;
  bool includes_low = true;
  double high = HUGE_VAL;
  bool includes_high = false;

  bool Contains(double value) const;
  std::string ToString()
      const;                  // "a finite number of at least 0 and below 1", "… from 0 to 1", "… above 0 and at most 1"
  std::string Brief() const;  // "[0.0, 1.0)", "[0.0, 1.0]", "(0.0, inf)", "(-inf, inf)"
  bool operator==(const NumberRange&) const = default;
};

inline NumberRange AtLeast(double low, double below = HUGE_VAL) { return {low, true, below}; }
inline NumberRange Above(double low, double below = HUGE_VAL) { return {low, false, below}; }
inline NumberRange Between(double low, double high) { return {low, true, high, true}; }
inline NumberRange AtMost(double high) { return {-HUGE_VAL, true, high, true}; }
inline NumberRange AnyFinite() { return {}; }

struct Setting {
  double value = 0;   // until another is set
  NumberRange range;  // has the value
};

}  // namespace lockstep
