#include "frontends/onnx/bounds.h"

#include "core/builder.h"

namespace lockstep {
namespace {

// The bound where `x beyond bound` holds, else x. The comparison is false for NaN.
Value Limited(Builder& b, Value x, const char* beyond, Value bound) {
  return b.Select(b.Compare(x, bound, beyond), bound, x);
}

}  // namespace

Value AtLeast(Builder& b, Value x, Value low) { return Limited(b, x, "lt", low); }
Value AtMost(Builder& b, Value x, Value high) { return Limited(b, x, "gt", high); }
Value Above(Builder& b, Value x, Value low) { return Limited(b, x, "le", low); }
Value Below(Builder& b, Value x, Value high) { return Limited(b, x, "ge", high); }

Value HardLimit(Builder& b, Value x) { return Below(b, Above(b, x, b.SplatLike(0.0, x)), b.SplatLike(1.0, x)); }

Value IfPositive(Builder& b, Value x, Value scaled) {
  return b.Select(b.Compare(x, b.SplatLike(0.0, x), "gt"), x, scaled);
}

}  // namespace lockstep
