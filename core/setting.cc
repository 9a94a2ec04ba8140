#include "core/setting.h"

#include <sstream>

#include "core/tensor.h"

namespace lockstep {

bool NumberRange::Contains(double value) const {
  return std::isfinite(value) && (includes_low ? value >= low : value > low) &&
         (includes_high ? value <= high : value < high);
}

std::string NumberRange::ToString() const {
  std::ostringstream text;
  text << "a finite number";
  if (includes_high && !std::isfinite(low)) {
    text << " of at most " << high;
    return text.str();
  }
  if (includes_high) {
    if (includes_low) text << " from " << low << " to " << high;
    else text << " above " << low << " and at most " << high;
    return text.str();
  }
  if (std::isfinite(low)) text << (includes_low ? " of at least " : " above ") << low;
  if (std::isfinite(high)) text << (std::isfinite(low) ? " and" : "") << " below " << high;
  return text.str();
}

std::string NumberRange::Brief() const {
  const bool closed = includes_low && std::isfinite(low);
  return (closed ? "[" : "(") + DoubleToString(low) + ", " + DoubleToString(high) + (includes_high ? "]" : ")");
}

}  // namespace lockstep
