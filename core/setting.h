// A setting: a number of a program that may change between runs without recompilation, such as a learning rate. It is a
// replicated f64 scalar input with a range. It keeps its value until another is set. Plain values; any thread.

#pragma once

#include <cmath>
#include <string>

namespace lockstep {

// The allowed numbers of a setting or a float attribute. Never includes NaN or an infinity.
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
  double value = 0;   // the initial value
  NumberRange range;  // contains `value`
};

}  // namespace lockstep
