// The ONNX operators that are imported, and their converters: one table per family, one file per table. To add an
// operator, add its row and its converter to a family. Internal to the frontend; constant data.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "frontends/onnx/onnx_node.h"

namespace lockstep {

inline constexpr int kAnyNumber = 1 << 30;  // any number of inputs, all of them present
inline constexpr int kAnyNumberSomeAbsent = kAnyNumber - 1;
inline constexpr int64_t kNoEnd = 1 << 30;

struct OnnxOp {
  std::string_view type;
  // The opsets of the domain for which the converter is correct. 1 to kNoEnd means all; only ONNX's own domain, whose
  // newest opset the importer checks, may use kNoEnd.
  int64_t since = 1, until = kNoEnd;
  int min_inputs = 1, max_inputs = 1;  // the first min_inputs are present
  absl::Status (*convert)(OnnxNode& n) = nullptr;
  bool takes_any_kind = false;   // also sequences and optionals; if false, all inputs are tensors
  std::string_view domain = "";  // empty for ONNX's own
};

std::vector<OnnxOp> ElementwiseOps();         // elementwise.cc
std::vector<OnnxOp> ActivationOps();          // activation.cc
std::vector<OnnxOp> BitOps();                 // bits.cc
std::vector<OnnxOp> ConstantOps();            // constant.cc: constants, shapes as values
std::vector<OnnxOp> ShapeOps();               // shape.cc
std::vector<OnnxOp> RearrangingOps();         // rearranging.cc
std::vector<OnnxOp> SlicingOps();             // slicing.cc
std::vector<OnnxOp> PaddingOps();             // padding.cc
std::vector<OnnxOp> IndexingOps();            // indexing.cc
std::vector<OnnxOp> ReductionOps();           // reduction.cc
std::vector<OnnxOp> MatMulOps();              // matmul.cc
std::vector<OnnxOp> EinsumOps();              // einsum.cc
std::vector<OnnxOp> MatrixOps();              // matrices.cc
std::vector<OnnxOp> ConvolutionOps();         // convolution.cc
std::vector<OnnxOp> PoolingOps();             // pooling.cc
std::vector<OnnxOp> UnpoolingOps();           // unpooling.cc: MaxUnpool, Col2Im
std::vector<OnnxOp> ResizeOps();              // resize.cc: Resize, Upsample
std::vector<OnnxOp> SamplingOps();            // sampling.cc: GridSample, AffineGrid, DeformConv
std::vector<OnnxOp> RegionOps();              // regions.cc: RoiAlign, MaxRoiPool
std::vector<OnnxOp> SelectionOps();           // selection.cc: NonZero, Unique, NonMaxSuppression
std::vector<OnnxOp> NormalizationOps();       // normalization.cc
std::vector<OnnxOp> LayerNormalizationOps();  // layer_normalization.cc
std::vector<OnnxOp> RandomOps();              // random.cc: RandomUniform, RandomNormal, Bernoulli, Multinomial, Dropout
std::vector<OnnxOp> LossOps();                // losses.cc
std::vector<OnnxOp> QuantizationOps();        // quantization.cc
std::vector<OnnxOp> SignalOps();              // signal.cc
std::vector<OnnxOp> AttentionOps();           // attention.cc
std::vector<OnnxOp> LinearAttentionOps();     // linear_attention.cc
std::vector<OnnxOp> RotaryOps();              // rotary.cc
std::vector<OnnxOp> ControlFlowOps();         // control_flow.cc: If, Loop, SequenceMap
std::vector<OnnxOp> ScanOps();                // scan.cc
std::vector<OnnxOp> RecurrentOps();           // recurrent.cc
std::vector<OnnxOp> SequenceOps();            // sequence.cc: sequences and optionals

// All rows of all families.
const std::vector<OnnxOp>& AllOnnxOps();

// Returns the row for `type` of `domain` in `opset`. An error for a domain other than ONNX's own says which domains, or
// which operators of this domain, are supported.
absl::StatusOr<const OnnxOp*> FindOnnxOp(std::string_view domain, std::string_view type, int64_t opset);

}  // namespace lockstep
