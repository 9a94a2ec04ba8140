// Ops that search and sort: their reference meaning on the places of the numbers in their order.

#include <algorithm>
#include <limits>

#include "verify/meaning.h"

namespace lockstep::verify {
namespace {

absl::Status ByOrder(Meaning& m) {
  std::vector<Exact> sorted;
  std::copy_if(m.x().begin(), m.x().end(), std::back_inserter(sorted), [](const Exact& x) { return !x.is_nan(); });
  std::sort(sorted.begin(), sorted.end());
  Tensor places({DType::kF64, m.operand(0).shape()});
  for (size_t i = 0; i < m.x().size(); ++i) {
    const auto place = std::lower_bound(sorted.begin(), sorted.end(), m.x()[i]) - sorted.begin();
    places.mutable_data<double>()[i] =
        m.x()[i].is_nan() ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(place);
  }
  std::vector<Tensor> results;
  for (size_t i = 0; i < m.num_results(); ++i) results.push_back(Names::ForResult(m.result(i).type()));
  const Tensor* operand = &places;
  EvalContext context(m.op(), m.attributes(), std::span<const Tensor* const>(&operand, 1), results);
  RETURN_IF_ERROR(m.op().eval()(context));
  m.Assume(m.op().name() + " orders numbers at random, and alike everywhere");
  for (size_t i = 0; i < m.num_results(); ++i) {
    if (!m.result(i).is_exact()) {
      m.result(i).integers() = results[i];
      continue;
    }
    for (size_t k = 0; k < m.y(i).size(); ++k) {
      const double place = results[i].data<double>()[k];
      m.y(i)[k] = place >= 0 ? sorted[static_cast<size_t>(place)] : Exact::NaN();
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::map<std::string_view, MeaningFn> OrderMeanings() {
  return {{"argmax", ByOrder}, {"argmin", ByOrder}, {"top_k", ByOrder}};
}

}  // namespace lockstep::verify
