#include "runtime/cuda/nccl_types.h"

#include "core/status.h"

namespace lockstep::cuda {
namespace {

// Returns false if NCCL cannot reduce this dtype.
bool TypeOf(DType dtype, ncclDataType_t& type) {
  switch (dtype) {
    case DType::kF64: return type = ncclFloat64, true;
    case DType::kF32: return type = ncclFloat32, true;
    case DType::kF16: return type = ncclFloat16, true;
    case DType::kBF16: return type = ncclBfloat16, true;
    case DType::kI8: return type = ncclInt8, true;
    case DType::kI32: return type = ncclInt32, true;
    case DType::kI64: return type = ncclInt64, true;
    case DType::kU8:
    case DType::kBool: return type = ncclUint8, true;
    case DType::kU32: return type = ncclUint32, true;
    case DType::kU64: return type = ncclUint64, true;
    case DType::kI16:
    case DType::kU16: return false;
  }
  return false;
}

ncclRedOp_t OpOf(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum: return ncclSum;
    case ReduceKind::kProd: return ncclProd;
    case ReduceKind::kMin: return ncclMin;
    case ReduceKind::kMax: return ncclMax;
    case ReduceKind::kMean: return ncclAvg;
  }
  return ncclSum;
}

}  // namespace

absl::StatusOr<NcclReduction> ReductionOf(DType dtype, ReduceKind kind, std::string_view label) {
  NcclReduction reduction{ncclUint8, OpOf(kind)};
  if (!TypeOf(dtype, reduction.type)) {
    return Unimplemented() << "`" << label << "`: NCCL cannot reduce " << dtype << "; convert it to i32 or u32";
  }
  if (dtype == DType::kBool) {
    reduction.op = kind == ReduceKind::kSum || kind == ReduceKind::kMax ? ncclMax : ncclMin;
  } else if (kind == ReduceKind::kMean && IsInteger(dtype) && SizeOf(dtype) < 8) {
    return Unimplemented() << "`" << label << "`: a mean of " << dtype << " is taken in 64 bits, and NCCL takes it in "
                           << 8 * SizeOf(dtype) << "; convert it to i64 or u64";
  }
  return reduction;
}

}  // namespace lockstep::cuda
