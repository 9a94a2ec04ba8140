// Muon.

#include <algorithm>
#include <cmath>

#include "core/ops/op_list.h"
#include "core/ops/optimizer.h"

namespace lockstep {
namespace {

using ops::Term;

// Approximates U V^T for x = U S V^T, by iterating a polynomial that moves the singular values of a matrix of norm 1
// close to 1.
Term Orthogonalized(const ops::Update& u, Term x) {
  const Term a = u.option("ns_a"), b = u.option("ns_b"), c = u.option("ns_c");
  const bool is_tall = u.shape()[0] > u.shape()[1];
  if (is_tall) x = Transposed(x);  // makes the products smaller
  x = x / Max(Norm(x), u.option("epsilon"));
  for (int64_t i = 0; i < u.attr<int64_t>("ns_steps"); ++i) {
    const Term gram = Product(x, Transposed(x));
    x = a * x + Product(b * gram + c * Product(gram, gram), x);
  }
  return is_tall ? Transposed(x) : x;
}

// The factor of the learning rate that makes one rate suit matrices of all shapes.
double Adjustment(const ops::Update& u) {
  const auto rows = static_cast<double>(u.shape()[0]), columns = static_cast<double>(u.shape()[1]);
  if (u.attr<std::string>("adjust_lr_fn") == "match_rms_adamw") return 0.2 * std::sqrt(std::max(rows, columns));
  return columns > 0 ? std::sqrt(std::max(1.0, rows / columns)) : 1.0;
}

std::vector<Term> Muon(ops::Update& u) {
  const Term rate = u.option("learning_rate"), momentum = u.option("momentum");
  const Term m = momentum * u.state(0) + (1 - momentum) * u.g();
  const Term direction = u.attr<bool>("nesterov") ? (1 - momentum) * u.g() + momentum * m : m;
  const Term w = (1 - rate * u.option("weight_decay")) * u.w();
  return {w - rate * Adjustment(u) * Orthogonalized(u, direction), m};
}

// Each iteration has two products of small * small * large multiplications and one of small * small * small.
double MuonFlops(const Node& node) {
  const Shape& shape = node.operand(0).shape();
  const auto small = static_cast<double>(std::min(shape[0], shape[1]));
  const auto large = static_cast<double>(std::max(shape[0], shape[1]));
  return static_cast<double>(node.attr<int64_t>("ns_steps")) * 2 * small * small * (2 * large + small);
}

}  // namespace

//===-- muon ----------------------------------------------------------------------------------------------------===//
const OpDef& MuonOp() {
  static const OpDef def =
      ops::Optimizer("muon", {{"m", "muon_momentum"}}, Muon, ops::Steps::kNotCounted, ops::Elements::kTogether)
          .Doc(
              "One step of Muon (Jordan et al., \"Muon: an optimizer for hidden layers in neural networks\", 2024), as "
              "in PyTorch: next_m = momentum * m + (1 - momentum) * g; x = nesterov ? (1 - momentum) * g + momentum * "
              "next_m : next_m, divided by max(|x|, epsilon); then ns_steps times x = ns_a * x + (ns_b * y + ns_c * "
              "y^2) x with y = x x^T; next_w = (1 - learning_rate * weight_decay) * w - learning_rate * r * x, where r "
              "is sqrt(max(1, rows / columns)), or 0.2 * sqrt(max(rows, columns)) if adjust_lr_fn is match_rms_adamw. "
              "PyTorch computes x in bf16, this op in the dtype of w, or in f32 if w has 16 bits. m starts as zeros.")
          .OptionalAttr<double>("weight_decay", 0.1, "weight of the decay of the variable itself")
          .In(AtLeast(0))
          .OrOperand()
          .OptionalAttr<double>("momentum", 0.95, "the share of m that remains")
          .In(AtLeast(0, 1))
          .OrOperand()
          .OptionalAttr<bool>("nesterov", true, "look ahead by one step")
          .OptionalAttr<double>("ns_a", 3.4445, "the first coefficient of the Newton-Schulz iteration")
          .In(AnyFinite())
          .OptionalAttr<double>("ns_b", -4.775, "the second coefficient")
          .In(AnyFinite())
          .OptionalAttr<double>("ns_c", 2.0315, "the third coefficient")
          .In(AnyFinite())
          .OptionalAttr<double>("epsilon", 1e-7, "the lower bound of the norm by which x is divided")
          .In(Above(0))
          .OptionalAttr<int64_t>("ns_steps", 5, "the number of iterations")
          .In(Between(1, 99))
          .OptionalAttr<std::string>("adjust_lr_fn", "original",
                                     "the adjustment of the learning rate to the shape of the matrix")
          .OneOf({"original", "match_rms_adamw"})
          .Updates({.least = 2, .most = 2})
          .Flops(MuonFlops)
          .UserName({.name = "Muon",
                     .doc =
                         "Muon (Jordan et al., 2024), for the matrices of hidden layers: momentum, made orthogonal.\n\n"
                         "It updates only states of two dimensions. `groups` of `train_step` give AdamW to the others, "
                         "and to embeddings and the last layer. PyTorch's `ns_coefficients` are ns_a, ns_b and ns_c. "
                         "The iteration is computed in f32, or in f64 for states of f64; PyTorch uses bf16.",
                     .defaults = {{"learning_rate", 1e-3}}});
  return def;
}

}  // namespace lockstep
