#include "frontends/onnx/recurrent_activations.h"

#include <algorithm>
#include <optional>

#include "core/builder.h"
#include "frontends/onnx/bounds.h"

namespace lockstep {
namespace {

Value Affine(Builder& b, double alpha, Value x, double beta) {
  const Value scaled = alpha == 1.0 ? x : b.Scale(x, alpha);
  return beta == 0.0 ? scaled : b.AddScalar(scaled, beta);
}

// A function with the defaults of its parameters; nullopt if it does not have that parameter.
struct Function {
  const char* name;
  std::optional<double> alpha, beta;
  Value (*apply)(Builder& b, Value x, double alpha, double beta);
};

const Function kFunctions[] = {
    {"relu", {}, {}, [](Builder& b, Value x, double, double) { return b.Unary("relu", x); }},
    {"tanh", {}, {}, [](Builder& b, Value x, double, double) { return b.Tanh(x); }},
    {"sigmoid", {}, {}, [](Builder& b, Value x, double, double) { return b.Unary("sigmoid", x); }},
    {"softsign", {}, {}, [](Builder& b, Value x, double, double) { return b.Unary("softsign", x); }},
    {"softplus", {}, {}, [](Builder& b, Value x, double, double) { return SoftplusOf(b, x); }},
    {"affine", 1.0, 0.0, [](Builder& b, Value x, double alpha, double beta) { return Affine(b, alpha, x, beta); }},
    {"leakyrelu",
     0.01f,
     {},
     [](Builder& b, Value x, double alpha, double) { return IfPositive(b, x, b.Scale(x, alpha)); }},
    {"thresholdedrelu",
     1.0,
     {},
     [](Builder& b, Value x, double alpha, double) {
       return b.Select(b.Compare(x, b.SplatLike(alpha, x), "gt"), x, b.SplatLike(0.0, x));
     }},
    {"scaledtanh", 1.0, 1.0,
     [](Builder& b, Value x, double alpha, double beta) {
       return Affine(b, alpha, b.Tanh(Affine(b, beta, x, 0.0)), 0.0);
     }},
    {"hardsigmoid", 0.2f, 0.5,
     [](Builder& b, Value x, double alpha, double beta) { return HardLimit(b, Affine(b, alpha, x, beta)); }},
    {"elu",
     1.0,
     {},
     [](Builder& b, Value x, double alpha, double) {
       const Value negative = AtMost(b, x, b.SplatLike(0.0, x));
       return IfPositive(b, x, b.Scale(b.AddScalar(b.Exp(negative), -1.0), alpha));
     }},
};

const Function* FindFunction(const std::string& name) {
  for (const Function& function : kFunctions) {
    if (name == function.name) return &function;
  }
  return nullptr;
}

std::string LowerCase(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

}  // namespace

absl::StatusOr<std::vector<Activation>> ReadActivations(OnnxNode& n, const std::vector<std::string>& defaults,
                                                        int64_t directions) {
  std::vector<std::string> names = n.Strings("activations");
  const size_t expected = defaults.size() * static_cast<size_t>(directions);
  if (names.empty()) {
    for (int64_t i = 0; i < directions; ++i) names.insert(names.end(), defaults.begin(), defaults.end());
  }
  if (names.size() != expected)
    return n.Error() << "attribute activations names " << names.size() << " functions, expected " << expected;
  const std::vector<double> alphas = n.Floats("activation_alpha"), betas = n.Floats("activation_beta");
  RETURN_IF_ERROR(n.b().status());
  std::vector<Activation> activations;
  size_t next_alpha = 0, next_beta = 0;
  for (const std::string& name : names) {
    const Function* function = FindFunction(LowerCase(name));
    if (function == nullptr) return n.Unsupported() << "attribute activations names '" << name << "'";
    Activation activation{function->name, function->alpha.value_or(0), function->beta.value_or(0)};
    if (function->alpha && next_alpha < alphas.size()) activation.alpha = alphas[next_alpha++];
    if (function->beta && next_beta < betas.size()) activation.beta = betas[next_beta++];
    activations.push_back(std::move(activation));
  }
  return activations;
}

// Computed without overflow as max(x, 0) + log1p(exp(-|x|)). At 0 the maximum has half of the gradient and |x| none.
Value SoftplusOf(Builder& b, Value x) {
  if (!x) return x;
  const Value above = b.Max(x, b.SplatLike(0.0, x));
  return b.Add(above, b.Unary("log1p", b.Exp(b.Neg(b.Unary("abs", x)))));
}

Value ApplyActivation(Builder& b, const Activation& activation, Value x) {
  const Function* function = FindFunction(activation.name);
  LOCKSTEP_CHECK(function != nullptr) << activation.name;
  return x ? function->apply(b, x, activation.alpha, activation.beta) : x;
}

}  // namespace lockstep
