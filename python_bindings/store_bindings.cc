// The update of one value of a store (lockstep.kv): an optimizer's program for a value of this type.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/builder.h"
#include "core/verifier.h"
#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/options.h"
#include "runtime/hash.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<nb::ro, const uint8_t, nb::c_contig, nb::device::cpu>;

// Returns graph @update(%gradient: T, state %value: T, setting %rescale_grad, …) -> (value: T, …), which updates by the
// gradient times rescale_grad. The optimizer's states and settings are named as in a training step: value/momentum,
// optimizer/learning_rate.
absl::StatusOr<Graph> UpdateOf(const passes::OptimizerSpec& optimizer, const TensorType& type, double rescale) {
  Graph graph("update");
  ASSIGN_OR_RETURN(const Value gradient, graph.AddInput("gradient", type));
  ASSIGN_OR_RETURN(const Value value, graph.AddInput("value", type, /*is_state=*/true));
  ASSIGN_OR_RETURN(const Value factor, graph.AddSetting("rescale_grad", {rescale, NumberRange()}));
  Builder b(graph, nullptr, "rescale_grad");
  const Value scaled = b.Mul(gradient, b.Broadcast(b.Convert(factor, type.dtype), type.shape, {}));
  RETURN_IF_ERROR(b.status());
  RETURN_IF_ERROR(passes::AddOptimizer(graph, {value}, {scaled}, optimizer));
  RETURN_IF_ERROR(Verify(graph));
  return graph;
}

}  // namespace

void BindStore(nb::module_& module) {
  module.def(
      "_update_step",
      [](const OptimizerChoice& optimizer, const std::string& dtype, const std::vector<int64_t>& shape,
         double rescale) {
        const std::optional<DType> known = DTypeFromName(dtype);
        if (!known.has_value()) ThrowIfError(InvalidArgument() << "unknown dtype '" << dtype << "'");
        const TensorType type{*known, Shape(shape)};
        return Model{ValueOrThrow(UpdateOf(OptimizerSpecOf(optimizer), type, rescale)), {}, nullptr, {}, {}};
      },
      "optimizer"_a, "dtype"_a, "shape"_a, "rescale"_a);
  // The hash of an array's bytes, with which workers compare their values.
  module.def(
      "_hash", [](const Bytes& array) { return HashBytes(array.data(), array.nbytes()); }, "array"_a,
      nb::sig("def _hash(array: numpy.ndarray) -> int"));
}

}  // namespace lockstep::python
