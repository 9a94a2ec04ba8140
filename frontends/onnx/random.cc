// Operators that draw random numbers: RandomUniform, RandomNormal, Bernoulli, Multinomial, and Dropout, which draws in
// training. Each run draws new numbers from the seed of the program (core/random.h). An attribute `seed` changes the
// numbers of its operator.

#include "core/random.h"

#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

// The bits of the attribute `seed`, a float, in the upper half, which the seeds of programs seldom use.
uint64_t SaltOf(OnnxNode& n) { return uint64_t{std::bit_cast<uint32_t>(static_cast<float>(n.Float("seed", 0)))} << 32; }

// The dtype in the attribute `dtype`, or `default_dtype`.
absl::StatusOr<DType> RandomDType(OnnxNode& n, DType default_dtype) {
  if (!n.has_attr("dtype")) return default_dtype;
  const int64_t number = n.Int("dtype", 0);
  RETURN_IF_ERROR(n.b().status());
  const absl::StatusOr<DType> dtype = DTypeFromOnnx(static_cast<int>(number));
  return dtype.ok() ? dtype : Annotate(dtype.status(), n.op_type() + ": attribute dtype");
}

absl::StatusOr<TensorType> FloatsOf(const OnnxNode& n, DType dtype, Shape shape) {
  if (IsFloat(dtype)) return TensorType{dtype, std::move(shape)};
  return n.Error() << "dtype is " << dtype << ", expected floats";
}

// The result type of an operator with the attribute `shape`.
absl::StatusOr<TensorType> TypeOfShape(OnnxNode& n) {
  if (!n.has_attr("shape")) return n.Error() << "attribute shape is missing";
  std::vector<int64_t> extents = n.Ints("shape");
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(Shape shape, n.CheckedShape(std::move(extents)));
  ASSIGN_OR_RETURN(const DType dtype, RandomDType(n, DType::kF32));
  return FloatsOf(n, dtype, std::move(shape));
}

// The result type of an operator whose result has the shape of its input.
absl::StatusOr<TensorType> TypeOfInput(OnnxNode& n) {
  const Value like = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  ASSIGN_OR_RETURN(const DType dtype, RandomDType(n, like.dtype()));
  return FloatsOf(n, dtype, like.shape());
}

// The attribute `name`; an error if it is not finite in `dtype`.
absl::StatusOr<double> FiniteAttr(OnnxNode& n, std::string_view name, double default_value, DType dtype) {
  const double value = n.Float(name, default_value);
  RETURN_IF_ERROR(n.b().status());
  if (std::isfinite(Tensor::Scalar(dtype, value).At(0))) return value;
  return n.Error() << "attribute " << name << " is " << value << ", which is not finite in " << dtype;
}

absl::Status Uniform(OnnxNode& n, const absl::StatusOr<TensorType>& type) {
  RETURN_IF_ERROR(type.status());
  ASSIGN_OR_RETURN(const double low, FiniteAttr(n, "low", 0, type->dtype));
  ASSIGN_OR_RETURN(const double high, FiniteAttr(n, "high", 1, type->dtype));
  if (low > high) return n.Error() << "attribute low is " << low << ", expected at most high, " << high;
  n.SetOutput(0, RandomUniform(n.b(), *type, low, high, SaltOf(n)));
  return absl::OkStatus();
}

absl::Status Normal(OnnxNode& n, const absl::StatusOr<TensorType>& type) {
  RETURN_IF_ERROR(type.status());
  ASSIGN_OR_RETURN(const double mean, FiniteAttr(n, "mean", 0, type->dtype));
  ASSIGN_OR_RETURN(const double scale, FiniteAttr(n, "scale", 1, type->dtype));
  if (scale < 0) return n.Error() << "attribute scale is " << scale << ", expected at least 0";
  n.SetOutput(0, RandomNormal(n.b(), *type, mean, scale, SaltOf(n)));
  return absl::OkStatus();
}

absl::Status Bernoulli(OnnxNode& n) {
  const Value probability = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  RETURN_IF_ERROR(FloatsOf(n, probability.dtype(), probability.shape()).status());
  ASSIGN_OR_RETURN(const DType dtype, RandomDType(n, probability.dtype()));
  n.SetOutput(0, n.b().Convert(RandomBernoulli(n.b(), probability, SaltOf(n)), dtype));
  return absl::OkStatus();
}

absl::Status Multinomial(OnnxNode& n) {
  const Value logits = n.input(0);
  RETURN_IF_ERROR(n.b().status());
  RETURN_IF_ERROR(FloatsOf(n, logits.dtype(), logits.shape()).status());
  if (logits.shape().rank() != 2 || logits.shape()[1] == 0)
    return n.Error() << "input 0 is " << logits.type() << ", expected [rows, classes]";
  const int64_t samples = n.Int("sample_size", 1);
  ASSIGN_OR_RETURN(const DType dtype, RandomDType(n, DType::kI32));
  RETURN_IF_ERROR(n.b().status());
  if (samples < 1) return n.Error() << "attribute sample_size is " << samples << ", expected at least 1";
  if (dtype != DType::kI32 && dtype != DType::kI64) return n.Error() << "dtype is " << dtype << ", expected i32 or i64";
  RETURN_IF_ERROR(n.CheckedShape({logits.shape()[0], samples, logits.shape()[1]}).status());
  n.SetOutput(0, n.b().Convert(RandomMultinomial(n.b(), logits, samples, SaltOf(n)), dtype));
  return absl::OkStatus();
}

// --- Dropout ---------------------------------------------------------------------------------------------------------

struct Ratio {
  std::optional<double> known;  // if it does not depend on data
  DType dtype = DType::kF32;
};

absl::StatusOr<Ratio> RatioOf(OnnxNode& n) {
  Ratio ratio;
  if (n.opset() >= 12 && n.has_attr("ratio"))
    return n.Error() << "ratio is an attribute, expected an input from opset 12 on";
  ratio.known = n.Float("ratio", 0.5);
  if (n.has_input(1)) {
    const Value given = n.input(1);
    RETURN_IF_ERROR(n.b().status());
    if (!IsFloat(given.dtype()) || given.type().num_elements() != 1)
      return n.Error() << "input 1, the ratio, is " << given.type() << ", expected one float";
    if (given.dtype() == DType::kF64) ratio.dtype = DType::kF64;
    const absl::StatusOr<double> value = n.FloatInput(1);
    ratio.known = value.ok() ? std::optional(*value) : std::nullopt;
  }
  RETURN_IF_ERROR(n.b().status());
  if (ratio.known && !(*ratio.known >= 0 && *ratio.known <= 1))
    return n.Error() << "the ratio is " << *ratio.known << ", expected 0 to 1";
  return ratio;
}

// True if input 2, training_mode, is the constant false, as in a file that was exported for inference. It exists from
// opset 12 on. Without it, the node may be in training mode.
bool IsForInferenceAlone(OnnxNode& n) {
  if (!n.has_input(2)) return false;
  const absl::StatusOr<double> training = n.FloatInput(2);
  return training.ok() && *training == 0;
}

absl::Status Dropout(OnnxNode& n) {
  Builder& b = n.b();
  n.Ignore("is_test");  // before opset 7
  const int64_t seed = n.Int("seed", 0);
  ASSIGN_OR_RETURN(const Ratio ratio, RatioOf(n));
  const Value x = n.input(0);
  RETURN_IF_ERROR(b.status());
  const std::string who = "Dropout (" + n.source() + ")";
  if (IsForInferenceAlone(n) || ratio.known == 0.0) {
    n.AddNote(who + (ratio.known == 0.0 ? " has the ratio 0" : " was exported for inference") +
              ": it is the identity, also in training.");
    n.SetOutput(0, x);
    if (n.has_output(1)) n.SetOutput(1, b.Splat(1, {DType::kBool, x.shape()}));
    return absl::OkStatus();
  }
  const Value share = ratio.known ? b.Constant(Tensor::Scalar(ratio.dtype, *ratio.known))
                                  : b.Convert(b.Reshape(n.input(1), {}), ratio.dtype);
  const std::vector<Value> results = b.Ops("dropout", {x, share}, {{"seed", seed}});
  n.AddNote(who + " drops values in training, with " +
            (ratio.known ? absl::StrCat("ratio ", *ratio.known) : "a ratio that the model computes") +
            "; in inference it is the identity.");
  n.SetOutput(0, results[0]);
  n.SetOutput(1, results[1]);
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> RandomOps() {
  return {
      {"RandomUniform", 1, kNoEnd, 0, 0, [](OnnxNode& n) { return Uniform(n, TypeOfShape(n)); }},
      {"RandomUniformLike", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Uniform(n, TypeOfInput(n)); }},
      {"RandomNormal", 1, kNoEnd, 0, 0, [](OnnxNode& n) { return Normal(n, TypeOfShape(n)); }},
      {"RandomNormalLike", 1, kNoEnd, 1, 1, [](OnnxNode& n) { return Normal(n, TypeOfInput(n)); }},
      {"Bernoulli", 15, kNoEnd, 1, 1, Bernoulli},
      {"Multinomial", 7, kNoEnd, 1, 1, Multinomial},
      {"Dropout", 1, 11, 1, 1, Dropout},
      {"Dropout", 12, kNoEnd, 1, 3, Dropout},
  };
}

}  // namespace lockstep
