// Einstein's summation: "ij,jk->ik". Each operand has one label per dimension. Repeated labels of an operand become
// diagonals, labels that neither the result nor another operand needs are summed, and operands become matrix products
// in pairs, from left to right.

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_split.h"
#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;
// A label is a letter, or kEllipsis + k for dimension k of an ellipsis, counted from its last dimension.
using Labels = std::vector<int>;

constexpr int kEllipsis = 256;

struct Operand {
  Value value;
  Labels labels;
};

bool Contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

int64_t Find(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) - labels.begin();
}

// The labels of one term. Its ellipsis stands for `ellipsis` dimensions.
absl::StatusOr<Labels> ParseTerm(const OnnxNode& n, std::string_view term, int64_t ellipsis) {
  Labels labels;
  bool has_ellipsis = false;
  while (!term.empty()) {
    if (!has_ellipsis && term.starts_with("...")) {
      has_ellipsis = true;
      for (int64_t k = ellipsis; k-- > 0;) labels.push_back(kEllipsis + static_cast<int>(k));
      term.remove_prefix(3);
      continue;
    }
    const char c = term[0];
    if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z'))
      return n.Error() << "attribute equation has '" << std::string(1, c) << "' in a term, expected letters or one ...";
    labels.push_back(c);
    term.remove_prefix(1);
  }
  return labels;
}

// The number of dimensions that the ellipsis of `term` stands for in a value of `rank`; 0 if there is no ellipsis.
absl::StatusOr<int64_t> EllipsisRank(const OnnxNode& n, std::string_view term, int64_t rank) {
  const bool has_ellipsis = term.find("...") != std::string_view::npos;
  const int64_t letters = static_cast<int64_t>(term.size()) - (has_ellipsis ? 3 : 0);
  if (has_ellipsis ? letters > rank : letters != rank)
    return n.Error() << "term '" << std::string(term) << "' of attribute equation is for an operand of rank " << rank;
  return rank - letters;
}

// The labels of the result of an equation without an arrow: the ellipsis, then the letters that occur once, in
// alphabetical order.
Labels ImplicitResult(const std::vector<Operand>& operands, int64_t ellipsis) {
  std::map<int, int> count;
  for (const Operand& operand : operands) {
    for (int label : operand.labels) ++count[label];
  }
  Labels result;
  for (int64_t k = ellipsis; k-- > 0;) result.push_back(kEllipsis + static_cast<int>(k));
  for (const auto& [label, times] : count) {
    if (label < kEllipsis && times == 1) result.push_back(label);
  }
  return result;
}

Operand Permute(Builder& b, const Operand& x, const Labels& order) {
  Ints permutation;
  for (int label : order) permutation.push_back(Find(x.labels, label));
  if (std::is_sorted(permutation.begin(), permutation.end())) return x;
  return {b.Transpose(x.value, permutation), order};
}

// Merges the first two dimensions with the same label into one, the diagonal. In row-major order its elements are n + 1
// apart among the n * n.
absl::Status TakeDiagonals(OnnxNode& n, Operand& x) {
  Builder& b = n.b();
  for (size_t i = 0; i < x.labels.size(); ++i) {
    const auto again = std::find(x.labels.begin() + static_cast<int64_t>(i) + 1, x.labels.end(), x.labels[i]);
    if (again == x.labels.end()) continue;
    const int64_t first = static_cast<int64_t>(i), second = again - x.labels.begin();
    const int64_t rank = x.value.shape().rank(), extent = x.value.shape()[first];
    if (x.value.shape()[second] != extent)
      return n.Error() << "a label repeats for extents " << extent << " and " << x.value.shape()[second];
    Ints permutation, dims;
    for (int64_t d = 0; d < rank; ++d) {
      if (d == first || d == second) continue;
      permutation.push_back(d);
      dims.push_back(x.value.shape()[d]);
    }
    permutation.insert(permutation.end(), {first, second});
    const int label = *again;
    x.labels.erase(again);
    x.labels.erase(x.labels.begin() + first);
    x.labels.push_back(label);
    dims.push_back(extent * extent);
    Ints start(dims.size(), 0), stride(dims.size(), 1);
    stride.back() = extent + 1;
    x.value = b.Slice(b.Reshape(b.Transpose(x.value, permutation), Shape(dims)), start, dims, stride);
    RETURN_IF_ERROR(b.status());
    return TakeDiagonals(n, x);
  }
  return absl::OkStatus();
}

// Drops dimensions of extent 1 whose label has a larger extent in another operand: the product repeats them.
absl::Status DropStretched(OnnxNode& n, std::vector<Operand>& operands) {
  std::map<int, int64_t> extents;
  for (const Operand& x : operands) {
    for (size_t i = 0; i < x.labels.size(); ++i) {
      const int64_t extent = x.value.shape()[static_cast<int64_t>(i)];
      int64_t& common = extents.emplace(x.labels[i], extent).first->second;
      if (common == 1) common = extent;
      if (extent != 1 && extent != common)
        return n.Error() << "a label stands for extents " << common << " and " << extent;
    }
  }
  for (Operand& x : operands) {
    Labels labels;
    Ints dropped;
    for (size_t i = 0; i < x.labels.size(); ++i) {
      const int64_t dim = static_cast<int64_t>(i);
      if (x.value.shape()[dim] == 1 && extents[x.labels[i]] != 1) dropped.push_back(dim);
      else labels.push_back(x.labels[i]);
    }
    x.value = n.b().Reshape(x.value, x.value.shape().Without(dropped));
    x.labels = labels;
  }
  return n.b().status();
}

// x summed over the labels that are not in `kept`.
void SumAllBut(Builder& b, Operand& x, const Labels& kept) {
  Labels labels;
  Ints summed;
  for (size_t i = 0; i < x.labels.size(); ++i) {
    if (Contains(kept, x.labels[i])) labels.push_back(x.labels[i]);
    else summed.push_back(static_cast<int64_t>(i));
  }
  x = {b.ReduceSum(x.value, summed), labels};
}

// x broadcast to the dimensions `order`, which include all of its labels.
Value Spread(Builder& b, const Operand& x, const Labels& order, const Ints& extents) {
  Labels own;
  Ints dims;
  for (size_t i = 0; i < order.size(); ++i) {
    if (!Contains(x.labels, order[i])) continue;
    own.push_back(order[i]);
    dims.push_back(static_cast<int64_t>(i));
  }
  return b.Broadcast(Permute(b, x, own).value, Shape(extents), dims);
}

// The product of x and y, summed over the labels that are not in `kept`. Requires that each label is in both operands
// or in `kept`.
absl::StatusOr<Operand> Multiply(OnnxNode& n, const Operand& x, const Operand& y, const Labels& kept) {
  Builder& b = n.b();
  Labels batch, rows, columns, summed;
  std::map<int, int64_t> extents;
  for (size_t i = 0; i < x.labels.size(); ++i) {
    extents[x.labels[i]] = x.value.shape()[static_cast<int64_t>(i)];
    if (!Contains(y.labels, x.labels[i])) rows.push_back(x.labels[i]);
    else (Contains(kept, x.labels[i]) ? batch : summed).push_back(x.labels[i]);
  }
  for (size_t i = 0; i < y.labels.size(); ++i) {
    extents[y.labels[i]] = y.value.shape()[static_cast<int64_t>(i)];
    if (!Contains(x.labels, y.labels[i])) columns.push_back(y.labels[i]);
  }
  const auto join = [](std::initializer_list<Labels> lists) {
    Labels all;
    for (const Labels& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  };
  const auto dims_of = [&](const Labels& labels) {
    Ints dims;
    for (int label : labels) dims.push_back(extents[label]);
    return dims;
  };
  const auto merged = [&](const Labels& first, const Labels& second) {
    Ints dims = dims_of(batch);
    for (const Labels& labels : {first, second}) {
      int64_t product = 1;
      for (int label : labels) product *= extents[label];
      dims.push_back(product);
    }
    return Shape(dims);
  };
  const Labels result = join({batch, rows, columns});
  ASSIGN_OR_RETURN(const Shape shape, n.CheckedShape(dims_of(result)));
  if (summed.empty()) {
    const Ints dims = shape.dims();
    return Operand{b.Mul(Spread(b, x, result, dims), Spread(b, y, result, dims)), result};
  }
  const Value left = b.Reshape(Permute(b, x, join({batch, rows, summed})).value, merged(rows, summed));
  const Value right = b.Reshape(Permute(b, y, join({batch, summed, columns})).value, merged(summed, columns));
  return Operand{b.Reshape(b.MatMul(left, right), shape), result};
}

struct Equation {
  std::vector<Operand> operands;
  Labels result;
};

absl::StatusOr<Equation> ParseEquation(OnnxNode& n) {
  std::string text = n.String("equation", "");
  const std::vector<Value> inputs = n.inputs();
  RETURN_IF_ERROR(n.b().status());
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  const size_t arrow = text.find("->");
  const std::vector<std::string> terms = absl::StrSplit(text.substr(0, arrow), ',');
  if (terms.size() != inputs.size())
    return n.Error() << "attribute equation '" << text << "' has " << terms.size() << " terms for " << inputs.size()
                     << " inputs";
  Equation equation;
  int64_t widest = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t ellipsis, EllipsisRank(n, terms[i], inputs[i].shape().rank()));
    ASSIGN_OR_RETURN(Labels labels, ParseTerm(n, terms[i], ellipsis));
    widest = std::max(widest, ellipsis);
    equation.operands.push_back({inputs[i], std::move(labels)});
  }
  if (arrow == std::string::npos) {
    equation.result = ImplicitResult(equation.operands, widest);
    return equation;
  }
  ASSIGN_OR_RETURN(equation.result, ParseTerm(n, std::string_view(text).substr(arrow + 2), widest));
  for (int label : equation.result) {
    const bool known = std::any_of(equation.operands.begin(), equation.operands.end(),
                                   [&](const Operand& x) { return Contains(x.labels, label); });
    if (!known || std::count(equation.result.begin(), equation.result.end(), label) > 1)
      return n.Error() << "attribute equation '" << text << "' has a label in its result twice or in no term";
  }
  return equation;
}

absl::Status Einsum(OnnxNode& n) {
  Builder& b = n.b();
  ASSIGN_OR_RETURN(Equation equation, ParseEquation(n));
  std::vector<Operand>& operands = equation.operands;
  for (Operand& x : operands) RETURN_IF_ERROR(TakeDiagonals(n, x));
  RETURN_IF_ERROR(DropStretched(n, operands));
  // The labels that the result and the operands after i need.
  const auto needed_after = [&](size_t i) {
    Labels needed = equation.result;
    for (size_t k = i + 1; k < operands.size(); ++k)
      needed.insert(needed.end(), operands[k].labels.begin(), operands[k].labels.end());
    return needed;
  };
  Operand product = operands[0];
  SumAllBut(b, product, needed_after(0));
  RETURN_IF_ERROR(b.status());
  for (size_t i = 1; i < operands.size(); ++i) {
    const Labels kept = needed_after(i);
    Labels needed = kept;
    needed.insert(needed.end(), product.labels.begin(), product.labels.end());
    SumAllBut(b, operands[i], needed);
    RETURN_IF_ERROR(b.status());
    ASSIGN_OR_RETURN(product, Multiply(n, product, operands[i], kept));
    RETURN_IF_ERROR(b.status());
  }
  n.SetOutput(0, Permute(b, product, equation.result).value);
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> EinsumOps() { return {{"Einsum", 12, kNoEnd, 1, kAnyNumber, Einsum}}; }

}  // namespace lockstep
