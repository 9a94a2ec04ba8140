// A tensor of a program in exact arithmetic: exact numbers for floats, and integers and booleans as they are. Integers
// of 8 bits are exact numbers too, because gradients travel as such. Plain values; any thread.

#pragma once

#include <memory>
#include <vector>

#include "core/tensor.h"
#include "verify/exact.h"

namespace lockstep::verify {

// True if elements of the dtype are exact numbers.
inline bool IsExact(DType dtype) { return IsFloat(dtype) || dtype == DType::kI8; }

class ExactTensor {
 public:
  ExactTensor() = default;
  // Zeros.
  explicit ExactTensor(TensorType type);
  // Each element of `tensor` as it is: see Exact::Of.
  static ExactTensor Of(const Tensor& tensor);
  // The same, of a value that follows from the constants of a program alone.
  static ExactTensor OfConstant(Tensor tensor);

  const TensorType& type() const { return type_; }
  const Shape& shape() const { return type_.shape; }
  DType dtype() const { return type_.dtype; }
  bool is_exact() const { return IsExact(type_.dtype); }
  size_t size() const { return static_cast<size_t>(type_.num_elements()); }

  // The elements that are exact numbers, in row-major order. Copies of a tensor share them until one of them is
  // changed.
  std::vector<Exact>& numbers();
  const std::vector<Exact>& numbers() const;
  // The elements of another dtype.
  Tensor& integers() {
    ForgetConstant();
    return integers_;
  }
  const Tensor& integers() const { return integers_; }

  // The elements as a compiler computes them, in floats, if the value follows from constants alone and was not changed;
  // else null.
  const Tensor* constant() const { return constant_.get(); }
  void ForgetConstant() { constant_ = nullptr; }

  // Slice `position` of a stack of tensors of `type` along a new dimension 0, and its replacement by `part`.
  ExactTensor Part(const TensorType& type, int64_t position) const;
  void SetPart(int64_t position, const ExactTensor& part);

  // True if `other` is a copy of this tensor, so that no element differs. False for other tensors with these elements.
  bool SharesElements(const ExactTensor& other) const;

  // The position of the first element that differs; null if there is none. Requires equal types but for the width of
  // floats.
  std::optional<size_t> FirstDifference(const ExactTensor& other) const;

 private:
  TensorType type_;
  std::shared_ptr<std::vector<Exact>> numbers_;  // shared, so that what many ranks have is computed once; may be null
  Tensor integers_;
  std::shared_ptr<const Tensor> constant_;
};

// Applies a movement of elements that is defined for tensors to exact ones. Each element of an operand becomes a name,
// an f64; `move` computes tensors of names; and names become the elements again. Elements of a result that are no name,
// such as padding, are numbers as they are. Operands and results that are not of exact numbers keep their elements.
class Names {
 public:
  // The operand with names for its elements.
  Tensor Of(const ExactTensor& operand);
  // The tensor of zeros into which `move` writes a result of `type`.
  static Tensor ForResult(const TensorType& type);
  // The elements that the names in `moved` stand for, as a tensor of `type`.
  ExactTensor Resolve(const Tensor& moved, const TensorType& type) const;

 private:
  std::vector<const ExactTensor*> operands_;
  std::vector<int64_t> first_;  // the name of element 0 of each operand
  int64_t next_ = int64_t{1} << 44;
};

}  // namespace lockstep::verify
