#include "passes/training/precision_rules.h"

#include <unordered_map>

namespace lockstep::passes {

std::string_view PrecisionRuleName(PrecisionRule rule) {
  switch (rule) {
    case PrecisionRule::kLow: return "16 bits";
    case PrecisionRule::kFull: return "f32";
    case PrecisionRule::kInside: return "f32 inside";
    case PrecisionRule::kFollows: return "follows";
    case PrecisionRule::kWritten: return "as written";
  }
  LOCKSTEP_CHECK(false) << "precision rule " << static_cast<int>(rule);
  __builtin_unreachable();
}

// Where PyTorch's lists for CUDA and CPU differ, that for CUDA counts, as models are mostly written for it. What
// follows there because it is on no list follows here.
const std::vector<PrecisionEntry>& AllPrecisionEntries() {
  static const std::vector<PrecisionEntry> entries = {
      {"neg", PrecisionRule::kFollows},
      {"abs", PrecisionRule::kFollows},
      {"sign", PrecisionRule::kFollows},
      {"exp", PrecisionRule::kFull},
      {"log", PrecisionRule::kFull},
      {"log1p", PrecisionRule::kFull},
      {"sqrt", PrecisionRule::kFollows},
      {"rsqrt", PrecisionRule::kFull},
      {"tanh", PrecisionRule::kFollows},
      {"sigmoid", PrecisionRule::kFollows},
      {"softsign", PrecisionRule::kFollows},
      {"erf", PrecisionRule::kFollows},
      {"relu", PrecisionRule::kFollows},
      {"floor", PrecisionRule::kFollows},
      {"ceil", PrecisionRule::kFollows},
      {"round", PrecisionRule::kFollows},
      {"sin", PrecisionRule::kFollows},
      {"cos", PrecisionRule::kFollows},
      {"tan", PrecisionRule::kFull},
      {"asin", PrecisionRule::kFull},
      {"acos", PrecisionRule::kFull},
      {"atan", PrecisionRule::kFollows},
      {"sinh", PrecisionRule::kFull},
      {"cosh", PrecisionRule::kFull},
      {"asinh", PrecisionRule::kFollows},
      {"acosh", PrecisionRule::kFollows},
      {"atanh", PrecisionRule::kFollows},
      {"add", PrecisionRule::kFollows},
      {"sub", PrecisionRule::kFollows},
      {"mul", PrecisionRule::kFollows},
      {"div", PrecisionRule::kFollows},
      {"fmod", PrecisionRule::kFollows},
      {"remainder", PrecisionRule::kFollows},
      {"max", PrecisionRule::kFollows},
      {"min", PrecisionRule::kFollows},
      {"pow", PrecisionRule::kFull},
      {"not", PrecisionRule::kFollows},
      {"and", PrecisionRule::kFollows},
      {"or", PrecisionRule::kFollows},
      {"xor", PrecisionRule::kFollows},
      {"shift_left", PrecisionRule::kFollows},
      {"shift_right", PrecisionRule::kFollows},
      {"bitcast", PrecisionRule::kFull},
      {"compare", PrecisionRule::kFollows},
      {"select", PrecisionRule::kFollows},
      {"within", PrecisionRule::kFollows},
      {"convert", PrecisionRule::kWritten},
      {"random_bits", PrecisionRule::kWritten},
      {"dropout", PrecisionRule::kFollows},
      {"stop_gradient", PrecisionRule::kFollows},
      {"constant", PrecisionRule::kWritten},
      {"iota", PrecisionRule::kWritten},
      {"reshape", PrecisionRule::kFollows},
      {"transpose", PrecisionRule::kFollows},
      {"broadcast", PrecisionRule::kFollows},
      {"concat", PrecisionRule::kFollows},
      {"slice", PrecisionRule::kFollows},
      {"pad", PrecisionRule::kFollows},
      {"reverse", PrecisionRule::kFollows},
      {"windows", PrecisionRule::kFollows},
      {"overlap_add", PrecisionRule::kFull},
      {"reduce_sum", PrecisionRule::kFull},
      {"reduce_max", PrecisionRule::kFollows},
      {"reduce_min", PrecisionRule::kFollows},
      {"reduce_prod", PrecisionRule::kFull},
      {"argmax", PrecisionRule::kFollows},
      {"argmin", PrecisionRule::kFollows},
      {"top_k", PrecisionRule::kFollows},
      {"cumulative_sum", PrecisionRule::kFull},
      {"cumulative_prod", PrecisionRule::kFull},
      {"gather", PrecisionRule::kFollows},
      {"scatter_sum", PrecisionRule::kFull},
      {"scatter", PrecisionRule::kFollows},
      {"matmul", PrecisionRule::kLow},
      {"convolution", PrecisionRule::kLow},
      {"convolution_grad_input", PrecisionRule::kLow},
      {"convolution_grad_filter", PrecisionRule::kLow},
      {"max_pool", PrecisionRule::kFollows},
      {"max_pool_grad", PrecisionRule::kFollows},
      {"avg_pool", PrecisionRule::kFollows},
      {"avg_pool_grad", PrecisionRule::kFollows},
      {"batch_norm_inference", PrecisionRule::kInside},
      {"batch_norm_training", PrecisionRule::kInside},
      {"batch_norm_grad", PrecisionRule::kInside},
      {"unbiased_variance", PrecisionRule::kFull},
      {"softmax", PrecisionRule::kFull},
      {"log_softmax", PrecisionRule::kFull},
      {"softmax_cross_entropy", PrecisionRule::kFull},
      {"attention", PrecisionRule::kLow},
      {"attention_grad", PrecisionRule::kFull},
      {"attention_mask_grad", PrecisionRule::kFull},
      {"all_reduce", PrecisionRule::kFull},
      {"reduce_scatter", PrecisionRule::kFull},
      {"collective_broadcast", PrecisionRule::kFollows},
      {"all_gather", PrecisionRule::kFollows},
      {"shard", PrecisionRule::kFollows},
      {"parts", PrecisionRule::kFollows},
      {"axis_index", PrecisionRule::kWritten},
      {"all_to_all", PrecisionRule::kFollows},
      {"collective_permute", PrecisionRule::kFollows},
      {"collective_gather", PrecisionRule::kFollows},
      {"collective_scatter", PrecisionRule::kFollows},
      {"push", PrecisionRule::kWritten},
      {"pull", PrecisionRule::kWritten},
      {"fusion", PrecisionRule::kFull},
      {"scan", PrecisionRule::kFull},
  };
  return entries;
}

PrecisionRule PrecisionRuleOf(const OpDef& op) {
  static const auto rules = [] {
    std::unordered_map<std::string_view, PrecisionRule> by_name;
    for (const PrecisionEntry& entry : AllPrecisionEntries()) by_name.emplace(entry.op, entry.rule);
    return by_name;
  }();
  const auto it = rules.find(op.name());
  return it == rules.end() ? PrecisionRule::kFull : it->second;
}

}  // namespace lockstep::passes
