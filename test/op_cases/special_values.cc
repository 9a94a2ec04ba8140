#include "test/op_cases/special_values.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <string_view>

#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

struct Special {
  const char* name;
  double (*value)(DType dtype);
};

// The smallest normal number of a float dtype.
double SmallestNormal(DType dtype) {
  switch (dtype) {
    case DType::kF64: return std::numeric_limits<double>::min();
    case DType::kF16: return 0x1p-14;
    default: return std::numeric_limits<float>::min();
  }
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr Special kSpecials[] = {
    {"nan", [](DType) { return std::numeric_limits<double>::quiet_NaN(); }},
    {"inf", [](DType) { return kInfinity; }},
    {"-inf", [](DType) { return -kInfinity; }},
    {"0", [](DType) { return 0.0; }},
    {"-0", [](DType) { return -0.0; }},
    {"denormal", [](DType dtype) { return SmallestNormal(dtype) / 4; }},
    {"-denormal", [](DType dtype) { return -SmallestNormal(dtype) / 8; }},
};
constexpr size_t kBeforeDenormals = 5;

struct ExemptionRow {
  std::string_view op;
  DType dtype;  // of the first operand
  Exemption exemption;
  std::string_view reason;
};

constexpr std::string_view kPadding = "some of oneDNN's kernels multiply taps over padding with zero, others skip them";
constexpr std::string_view kBF16 = "the processor's bf16 instructions treat denormals as zero, and oneDNN uses them";
constexpr std::string_view kPairs = "oneDNN multiplies pairs of bf16, the last with a zero, and NaN times zero is NaN";
constexpr std::string_view kHidden = "a block multiplies hidden elements with zeros, and NaN times zero is NaN";

constexpr ExemptionRow kExemptions[] = {
    {"convolution", DType::kF32, Exemption::kTapsOverZeros, kPadding},
    {"convolution_grad_filter", DType::kF32, Exemption::kTapsOverZeros, kPadding},
    {"matmul", DType::kBF16, Exemption::kDenormals, kBF16},
    {"convolution", DType::kBF16, Exemption::kDenormals, kBF16},
    {"convolution_grad_input", DType::kBF16, Exemption::kDenormals, kBF16},
    {"convolution_grad_filter", DType::kBF16, Exemption::kDenormals, kBF16},
    {"max_pool", DType::kBF16, Exemption::kDenormals, kBF16},
    {"max_pool_grad", DType::kBF16, Exemption::kDenormals, kBF16},
    {"avg_pool", DType::kBF16, Exemption::kDenormals, kBF16},
    {"avg_pool_grad", DType::kBF16, Exemption::kDenormals, kBF16},
    {"matmul", DType::kBF16, Exemption::kMaySpread, kPairs},
    {"convolution", DType::kBF16, Exemption::kMaySpread, kPairs},
    {"convolution_grad_input", DType::kBF16, Exemption::kMaySpread, kPairs},
    {"convolution_grad_filter", DType::kBF16, Exemption::kMaySpread, kPairs},
    {"attention", DType::kF32, Exemption::kMaySpread, kHidden},
    {"attention", DType::kF64, Exemption::kMaySpread, kHidden},
    {"attention", DType::kBF16, Exemption::kMaySpread, kHidden},
    {"attention", DType::kF16, Exemption::kMaySpread, kHidden},
    {"attention_grad", DType::kF32, Exemption::kMaySpread, kHidden},
    {"attention_grad", DType::kF64, Exemption::kMaySpread, kHidden},
    {"attention_grad", DType::kBF16, Exemption::kMaySpread, kHidden},
    {"attention_grad", DType::kF16, Exemption::kMaySpread, kHidden},
    {"attention_mask_grad", DType::kF32, Exemption::kMaySpread, kHidden},
    {"attention_mask_grad", DType::kF64, Exemption::kMaySpread, kHidden},
    {"attention_mask_grad", DType::kBF16, Exemption::kMaySpread, kHidden},
    {"attention_mask_grad", DType::kF16, Exemption::kMaySpread, kHidden},
};

// True if the sign of a zero is part of the op's meaning, as in PyTorch: for results that are computed elementwise or
// copied. The sign of a sum that is zero is not defined.
bool DefinesZeroSigns(const OpCase& row) {
  const OpDef& op = GetOp(row.op);
  return op.has_trait(kElementwise) || op.has_trait(kMovement);
}

// Replaces about one in seven elements of `tensor`, and at least one, by special values.
void Strew(std::span<const Special> specials, std::mt19937_64& random, Tensor& tensor) {
  DispatchDType(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::span<T> elements = tensor.mutable_data<T>();
    const size_t first = static_cast<size_t>(random() % elements.size());
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i != first && random() % 7 != 0) continue;
      elements[i] = ConvertElement<T>(specials[random() % specials.size()].value(tensor.dtype()));
    }
  });
}

}  // namespace

bool IsExempt(const OpCase& row, Exemption exemption) {
  return std::any_of(std::begin(kExemptions), std::end(kExemptions), [&](const ExemptionRow& one) {
    return one.op == row.op && one.exemption == exemption && one.dtype == row.operands[0].type.dtype;
  });
}

std::vector<SpecialInputs> SpecialRankInputs(const OpCase& row) {
  if (row.operands.empty()) return {};
  const OpDef& op = GetOp(row.op);
  const auto is_strewn = [&](size_t i) {
    const TensorType& type = row.operands[i].type;
    const bool is_setting = !op.is_variadic() && i >= op.operand_names().size();  // it must stay in its range
    return IsFloat(type.dtype) && type.num_elements() > 0 && !is_setting;
  };
  std::vector<SpecialInputs> all;
  const auto add = [&](const char* name, const std::function<void(std::mt19937_64&, Tensor&)>& change) {
    SpecialInputs made{name, RankInputs(row)};
    std::mt19937_64 random(1 + all.size());
    bool any = false;
    for (std::vector<Tensor>& of_rank : made.inputs) {
      for (size_t i = 0; i < of_rank.size(); ++i) {
        if (!is_strewn(i)) continue;
        change(random, of_rank[i]);
        any = true;
      }
    }
    if (any) all.push_back(std::move(made));
  };
  std::span<const Special> specials = kSpecials;
  if (IsExempt(row, Exemption::kDenormals)) specials = specials.first(kBeforeDenormals);
  for (const Special& special : specials) {
    add(special.name, [&](std::mt19937_64& random, Tensor& tensor) { Strew({&special, 1}, random, tensor); });
  }
  add("all", [&](std::mt19937_64& random, Tensor& tensor) { Strew(specials, random, tensor); });
  add("nothing but -inf", [](std::mt19937_64&, Tensor& tensor) { tensor = Tensor::Full(tensor.type(), -kInfinity); });
  return all;
}

std::string SpecialDifference(const OpCase& row, const Tensor& actual, std::span<const Tensor> expected,
                              double tolerance) {
  std::vector<double> largest;  // by tensor
  for (const Tensor& one : expected) {
    if (actual.type() != one.type()) return actual.type().ToString() + " against " + one.type().ToString();
    double& most = largest.emplace_back(0);
    for (int64_t i = 0; i < one.num_elements(); ++i) {
      if (std::isfinite(one.At(i))) most = std::max(most, std::abs(one.At(i)));
    }
  }
  const bool zero_signs = DefinesZeroSigns(row), may_spread = IsExempt(row, Exemption::kMaySpread);
  const double normal = IsFloat(actual.dtype()) ? SmallestNormal(actual.dtype()) : 0;
  const auto is_as_expected = [&](double a, double e, double most) {
    if (std::isnan(a) && (std::isnan(e) || may_spread)) return true;
    const bool sign_differs = zero_signs && e == 0 && a == 0 && std::signbit(a) != std::signbit(e);
    // The lowest bits of a denormal may be rounding errors, but a flush to zero is an error.
    const bool is_flushed = a == 0 && e != 0 && std::abs(e) < normal && std::abs(e) > normal / 256;
    const bool is_close = a == e || std::abs(a - e) <= tolerance * most;
    return is_close && !sign_differs && !is_flushed;
  };
  for (int64_t i = 0; i < actual.num_elements(); ++i) {
    bool is_any = false;
    std::string said;
    for (size_t k = 0; k < expected.size(); ++k) {
      is_any = is_any || is_as_expected(actual.At(i), expected[k].At(i), largest[k]);
      said += (k == 0 ? ", expected " : " or ") + DoubleToString(expected[k].At(i)) + " (largest " +
              DoubleToString(largest[k]) + ")";
    }
    if (!is_any) return "element " + std::to_string(i) + " is " + DoubleToString(actual.At(i)) + said;
  }
  return "";
}

std::string SpecialDifference(const OpCase& row, const Tensor& actual, const Tensor& expected, double tolerance) {
  return SpecialDifference(row, actual, {&expected, 1}, tolerance);
}

}  // namespace lockstep
