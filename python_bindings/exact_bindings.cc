// Exact numbers in arrays (verify/exact.h), for programs that Python interprets (lockstep/_hlo). An array of exact
// numbers is a row-major NumPy array of which each element is the memory of one, so that NumPy moves them; here it is
// the array's bytes.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>

#include "core/op_def.h"
#include "core/status.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "verify/meaning.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;
using verify::Exact;

namespace {

using ExactArray = nb::ndarray<nb::ro, const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableExactArray = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Numbers = nb::ndarray<nb::ro, const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using WritableNumbers = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// NumPy copies elements, and its zeros are bytes of zeros.
static_assert(std::is_trivially_copyable_v<Exact>);

// The `count` numbers of an array.
template <typename Array, typename Element = std::conditional_t<std::is_same_v<Array, ExactArray>, const Exact, Exact>>
std::span<Element> ElementsOf(const Array& array, size_t count) {
  if (array.size() != count * sizeof(Exact)) {
    ThrowIfError(InvalidArgument() << "an array of exact numbers has " << array.size() << " bytes, not " << count
                                   << " times " << sizeof(Exact));
  }
  return {reinterpret_cast<Element*>(array.data()), count};
}

void FromFloats(const Numbers<double>& values, const std::string& dtype, const WritableExactArray& result) {
  std::transform(values.data(), values.data() + values.size(), ElementsOf(result, values.size()).begin(),
                 [&](double value) { return Exact::Of(value, *DTypeFromName(dtype)); });
}

void FromIntegers(const Numbers<int64_t>& values, const WritableExactArray& result) {
  std::transform(values.data(), values.data() + values.size(), ElementsOf(result, values.size()).begin(),
                 [](int64_t value) { return Exact::Of(value); });
}

void Draw(uint64_t seed, const WritableExactArray& result) {
  for (Exact& number : ElementsOf(result, result.size() / sizeof(Exact)))
    number = Exact::Random(seed = verify::MixedBits(seed));
}

void RandomElementwise(const std::string& op, const std::vector<verify::ExactTensor>& operands,
                       std::vector<Exact>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    uint64_t key = 0;
    Exact argument;
    for (const verify::ExactTensor& operand : operands) {
      const Exact& number = operand.numbers()[i];
      key = verify::MixedBits(key ^ number.Hash());
      if (!argument.is_nan()) argument = number;
    }
    results[i] = verify::RandomFunction(op, {argument}, key);
  }
}

// The elementwise op by its row of verify/meaning.h, or else a random function of this name.
void Elementwise(const std::string& op, const std::vector<ExactArray>& operands, const WritableExactArray& result) {
  const std::span<Exact> out = ElementsOf(result, result.size() / sizeof(Exact));
  const TensorType type{DType::kF64, Shape({static_cast<int64_t>(out.size())})};
  std::vector<verify::ExactTensor> tensors(operands.size(), verify::ExactTensor(type));
  std::vector<const verify::ExactTensor*> pointers;
  for (size_t i = 0; i < operands.size(); ++i) {
    std::ranges::copy(ElementsOf(operands[i], out.size()), tensors[i].numbers().begin());
    pointers.push_back(&tensors[i]);
  }
  verify::ExactTensor found(type);
  static const auto meanings = verify::ElementwiseMeanings();
  if (const auto row = meanings.find(op); row != meanings.end()) {
    if (const size_t count = GetOp(op).operand_names().size(); operands.size() != count) {
      ThrowIfError(InvalidArgument() << op << " has " << operands.size() << " operands, not " << count);
    }
    const AttributeMap none;
    verify::Assumptions assumptions;
    verify::Meaning meaning(GetOp(op), none, pointers, std::span(&found, 1), assumptions);
    ThrowIfError(row->second(meaning));
  } else {
    RandomElementwise(op, tensors, found.numbers());
  }
  std::ranges::copy(found.numbers(), out.begin());
}

int8_t Order(const Exact& x, const Exact& y) {
  if (x.is_nan() || y.is_nan()) return x.is_nan() && y.is_nan() ? 3 : 2;
  return static_cast<int8_t>(x == y ? 0 : x < y ? -1 : 1);
}

void Compare(const ExactArray& x, const ExactArray& y, const WritableNumbers<int8_t>& result) {
  std::ranges::transform(ElementsOf(x, result.size()), ElementsOf(y, result.size()), result.data(), Order);
}

void ToIntegers(const ExactArray& x, int64_t unknown, const WritableNumbers<int64_t>& result) {
  std::ranges::transform(ElementsOf(x, result.size()), result.data(),
                         [&](const Exact& number) { return number.small_integer().value_or(unknown); });
}

void Multiply(const ExactArray& a, const ExactArray& b, size_t batch, size_t rows, size_t inner, size_t columns,
              const WritableExactArray& result) {
  const Exact* x = ElementsOf(a, batch * rows * inner).data();
  const Exact* y = ElementsOf(b, batch * inner * columns).data();
  Exact* z = ElementsOf(result, batch * rows * columns).data();
  for (size_t i = 0; i < batch * rows; ++i) {
    const Exact *row = x + i * inner, *matrix = y + i / rows * inner * columns;
    for (size_t j = 0; j < columns; ++j) {
      verify::ExactProducts sum;
      for (size_t k = 0; k < inner; ++k) sum.Add(row[k], matrix[k * columns + j]);
      *z++ = sum.total();
    }
  }
}

}  // namespace

void BindExact(nb::module_& module) {
  module.attr("_EXACT_BYTES") = sizeof(Exact);
  module.def("_exact_of_floats", &FromFloats, "values"_a, "dtype"_a, "result"_a,
             "Writes numbers in float64 as exact ones: the simplest fraction that rounds to each in `dtype`.");
  module.def("_exact_of_integers", &FromIntegers, "values"_a, "result"_a, "Writes int64 as exact numbers.");
  module.def("_exact_random", &Draw, "seed"_a, "result"_a, "Writes random numbers that follow from the seed.");
  module.def(
      "_exact_elementwise", &Elementwise, "op"_a, "operands"_a, "result"_a,
      "Writes the result of an elementwise op, which is a random function if exact arithmetic does not have it.");
  module.def("_exact_compare", &Compare, "x"_a, "y"_a, "result"_a,
             "Writes -1 where x < y, 0 where they are equal, 1 where x > y, 2 where one is a NaN, 3 where both are.");
  module.def("_exact_to_integers", &ToIntegers, "x"_a, "unknown"_a, "result"_a,
             "Writes the integer that each number is, or `unknown`.");
  module.def("_exact_multiply", &Multiply, "a"_a, "b"_a, "batch"_a, "rows"_a, "inner"_a, "columns"_a, "result"_a,
             "Writes the products of matrices: a[batch, rows, inner] b[batch, inner, columns].");
}

}  // namespace lockstep::python
