#include "backends/cuda/cublaslt.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "test/fake_cuda/driver_of_folder.h"
#include "test/fake_cuda/elements.h"
#include "test/fake_cuda/fake_cublaslt.h"

#define LOCKSTEP_FAKE extern "C" __attribute__((visibility("default")))

namespace lockstep::cuda {

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transpose[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
  int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t batch = 1;
  int64_t stride = 0;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace = 0;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D, in bytes
};

namespace {

constexpr uint64_t kAlgorithm = 0x4c6f636b73746570;

// The algorithms that the heuristics return, in this order. Callers must not use some of them.
struct Algorithm {
  std::chrono::microseconds time;  // duration as the events of its stream measure it
  uint64_t workspace = 4096;
  cublasStatus_t state = CUBLAS_STATUS_SUCCESS;  // status in the result of the heuristics
  cublasStatus_t run = CUBLAS_STATUS_SUCCESS;    // status of cublasLtMatmul
  bool backwards = false;                        // sums in f32 from the last product to the first, so the bits differ
  bool halves = false;  // sums each half in the type of the result; first in the list where it is allowed
};
constexpr Algorithm kAlgorithms[] = {
    {.time = std::chrono::milliseconds(300)},
    {.time = std::chrono::milliseconds(10), .workspace = uint64_t{1} << 40},
    {.time = std::chrono::milliseconds(20), .state = CUBLAS_STATUS_NOT_SUPPORTED},
    {.time = std::chrono::milliseconds(30), .run = CUBLAS_STATUS_EXECUTION_FAILED},
    {.time = std::chrono::milliseconds(100), .backwards = true},
    {.time = std::chrono::milliseconds(200)},
    {.time = std::chrono::milliseconds(5), .halves = true},
};

// True if the heuristics return the algorithm. An algorithm that sums in the type of the result is only for 16-bit
// types, and may be forbidden.
bool IsNamed(const Algorithm& algorithm, cudaDataType_t type, uint32_t reduction_schemes) {
  constexpr uint32_t kInResult = CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  const bool is_narrow = type == CUDA_R_16F || type == CUDA_R_16BF;
  return !algorithm.halves || (is_narrow && (reduction_schemes & kInResult) != 0);
}

// The words of an algorithm: its number here, and the problem that it is for.
enum Word { kMagic, kRows, kColumns, kBatch, kNumber, kAlignments };

// Alignments of A, B, C and D as given to the heuristics, 16 bits each.
uint64_t Packed(const uint32_t (&alignment)[4]) {
  uint64_t word = 0;
  for (uint32_t each : alignment) word = word << 16 | each;
  return word;
}
uint64_t AlignmentIn(uint64_t word, int matrix) { return word >> (16 * (3 - matrix)) & 0xffff; }

class Recorder final : public FakeCublasLt {
 public:
  void Add(std::string call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
  }
  std::vector<std::string> TakeCalls() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(calls_, {});
  }
  void FailCreate() override {
    const std::lock_guard lock(mutex_);
    fails_ = true;
  }
  int64_t live() const override { return live_; }
  // Create and destroy the objects that callers get, and count them.
  template <typename T, typename... Parts>
  T* Make(Parts... parts) {
    ++live_;
    return new T{parts...};
  }
  template <typename T>
  cublasStatus_t Destroy(T* object) {
    --live_;
    delete object;
    return CUBLAS_STATUS_SUCCESS;
  }
  bool TakeFailure() {
    const std::lock_guard lock(mutex_);
    return std::exchange(fails_, false);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> calls_;
  bool fails_ = false;
  std::atomic<int64_t> live_{0};
};
Recorder recorder;

cublasStatus_t Refuse(const std::string& why) {
  std::fprintf(stderr, "fake cuBLASLt: %s\n", why.c_str());
  return CUBLAS_STATUS_INVALID_VALUE;
}

DType DTypeOf(cudaDataType_t type) {
  return type == CUDA_R_64F    ? DType::kF64
         : type == CUDA_R_16F  ? DType::kF16
         : type == CUDA_R_16BF ? DType::kBF16
                               : DType::kF32;
}

double Rounded(double x, DType dtype) {
  std::byte stored[8];
  WriteElement(dtype, stored, 0, x);
  return ReadElement(dtype, stored, 0);
}

struct Product {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  const std::byte *a_data, *b_data;
  std::byte* d_data;
  double alpha;
  const std::byte* bias;  // one element for each row of D; null: no bias
  const Algorithm* algorithm;
  FakeDriver* driver;
  CUstream stream;

  int64_t rows() const { return static_cast<int64_t>(d.rows); }
  int64_t columns() const { return static_cast<int64_t>(d.columns); }
  int64_t inner() const { return static_cast<int64_t>(desc.transpose[0] == CUBLAS_OP_N ? a.columns : a.rows); }

  double Element(const cublasLtMatrixLayoutOpaque_t& layout, const std::byte* data, int32_t transpose, int64_t matrix,
                 int64_t row, int64_t column) const {
    if (transpose != CUBLAS_OP_N) std::swap(row, column);
    const double x = ReadElement(DTypeOf(layout.type), data, matrix * layout.stride + column * layout.leading + row);
    return desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? ToTf32(x) : x;
  }

  // Applies the epilogue. A NaN stays NaN.
  double Finished(double x, int64_t row) const {
    if (bias != nullptr) x += ReadElement(DTypeOf(d.type), bias, row);
    return (desc.epilogue & CUBLASLT_EPILOGUE_RELU) != 0 && x < 0 ? 0 : x;
  }

  double Sum(int64_t matrix, int64_t i, int64_t j) const {
    const auto product = [&](int64_t l) {
      return Element(a, a_data, desc.transpose[0], matrix, i, l) * Element(b, b_data, desc.transpose[1], matrix, l, j);
    };
    if (algorithm->halves) {
      double parts[2] = {0, 0};
      for (int64_t l = 0; l < inner(); ++l) parts[l >= inner() / 2] += product(l);
      const DType to = DTypeOf(d.type);
      return Rounded(Rounded(parts[0], to) + Rounded(parts[1], to), to);
    }
    double sum = 0;
    float narrow = 0;
    for (int64_t l = 0; l < inner(); ++l) {
      if (algorithm->backwards) narrow += static_cast<float>(product(inner() - 1 - l));
      else sum += product(l);
    }
    return algorithm->backwards ? narrow : sum;
  }

  void Run() const {
    driver->Spend(stream, algorithm->time);
    for (int64_t matrix = 0; matrix < d.batch; ++matrix) {
      for (int64_t j = 0; j < columns(); ++j) {
        for (int64_t i = 0; i < rows(); ++i) {
          WriteElement(DTypeOf(d.type), d_data, matrix * d.stride + j * d.leading + i,
                       Finished(alpha * Sum(matrix, i, j), i));
        }
      }
    }
  }
};

std::string Check(const cublasLtMatmulDescOpaque_t& desc, const cublasLtMatrixLayoutOpaque_t& a,
                  const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& c,
                  const cublasLtMatrixLayoutOpaque_t& d) {
  const auto rows = [](const auto& layout, int32_t transpose) {
    return transpose == CUBLAS_OP_N ? layout.rows : layout.columns;
  };
  const auto columns = [](const auto& layout, int32_t transpose) {
    return transpose == CUBLAS_OP_N ? layout.columns : layout.rows;
  };
  if (columns(a, desc.transpose[0]) != rows(b, desc.transpose[1])) return "the columns of A and the rows of B differ";
  if (rows(a, desc.transpose[0]) != d.rows || columns(b, desc.transpose[1]) != d.columns)
    return "D does not have the shape of A B";
  if (c.rows != d.rows || c.columns != d.columns) return "C does not have the shape of D";
  for (const auto* layout : {&a, &b, &c, &d}) {
    if (layout->rows == 0 || layout->columns == 0) return "a matrix is empty";
    if (layout->leading < static_cast<int64_t>(layout->rows)) return "a leading dimension is below the rows";
    if (layout->batch != d.batch) return "the numbers of matrices differ";
  }
  // The library's table of types: 16-bit operands may have a result of f32. It has no such product with an epilogue
  // whose bias is of 16 bits, and none is used here.
  const bool is_narrow = a.type == CUDA_R_16F || a.type == CUDA_R_16BF;
  if (b.type != a.type || c.type != d.type) return "the types differ";
  if (d.type != a.type && (!is_narrow || d.type != CUDA_R_32F)) return "a result of another type";
  if (d.type != a.type && desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return "an epilogue with a wide result";
  const bool wide = d.type == CUDA_R_64F;
  if ((desc.scale == CUDA_R_64F) != wide || (desc.compute == CUBLAS_COMPUTE_64F) != wide)
    return "f64 is computed in another type";
  if (desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type != CUDA_R_32F) return "TF32 needs f32";
  if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return "";
  if ((desc.epilogue & ~CUBLASLT_EPILOGUE_RELU_BIAS) != 0) return "an epilogue that the fake does not support";
  if (wide) return "an epilogue with f64";
  if ((desc.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 && desc.bias == nullptr) return "an epilogue without its bias";
  return "";
}

// The number of bytes that the matrices of a layout span.
size_t SpanOf(const cublasLtMatrixLayoutOpaque_t& layout) {
  const int64_t last = (layout.batch - 1) * layout.stride +
                       (static_cast<int64_t>(layout.columns) - 1) * layout.leading + static_cast<int64_t>(layout.rows);
  return static_cast<size_t>(last) * SizeOf(DTypeOf(layout.type));
}

std::string Describe(const Product& product, int32_t batch) {
  const auto matrix = [](int64_t rows, int64_t columns) {
    return "[" + std::to_string(rows) + "," + std::to_string(columns) + "]";
  };
  const auto op = [](int32_t transpose) { return transpose == CUBLAS_OP_N ? " N" : " T"; };
  return "D" + matrix(product.rows(), product.columns()) + " = A" + matrix(product.rows(), product.inner()) +
         op(product.desc.transpose[0]) + " x B" + matrix(product.inner(), product.columns()) +
         op(product.desc.transpose[1]) + ", " + std::string(DTypeName(DTypeOf(product.d.type))) + ", compute " +
         std::to_string(product.desc.compute) + ", " + std::to_string(batch) + " matrices, epilogue " +
         std::to_string(product.desc.epilogue) +
         (product.algorithm == kAlgorithms ? "" : ", algorithm " + std::to_string(product.algorithm - kAlgorithms));
}

// The algorithm with these words, or null if it is not one for this problem.
const Algorithm* AlgorithmOf(const cublasLtMatmulAlgo_t& words, const cublasLtMatrixLayoutOpaque_t& d) {
  const auto& data = words.data;
  const bool fits = data[kMagic] == kAlgorithm && data[kRows] == d.rows && data[kColumns] == d.columns &&
                    data[kBatch] == static_cast<uint64_t>(d.batch) && data[kNumber] < std::size(kAlgorithms);
  return fits ? &kAlgorithms[data[kNumber]] : nullptr;
}

}  // namespace

LOCKSTEP_FAKE FakeCublasLt* lockstep_fake_cublaslt() { return &recorder; }

// A test may give the processes of a job different versions.
LOCKSTEP_FAKE size_t cublasLtGetVersion() {
  const char* version = std::getenv("LOCKSTEP_FAKE_CUBLASLT");
  return version == nullptr ? 130100 : std::stoul(version);
}
LOCKSTEP_FAKE size_t cublasLtGetCudartVersion() { return 13000; }
LOCKSTEP_FAKE const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS";
}
LOCKSTEP_FAKE const char* cublasLtGetStatusString(cublasStatus_t) { return "of the fake"; }
LOCKSTEP_FAKE cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (recorder.TakeFailure()) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = recorder.Make<cublasLtContext>();
  return CUBLAS_STATUS_SUCCESS;
}
LOCKSTEP_FAKE cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return recorder.Destroy(handle); }

LOCKSTEP_FAKE cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                                      cudaDataType_t scale) {
  *desc = recorder.Make<cublasLtMatmulDescOpaque_t>(compute, scale);
  return CUBLAS_STATUS_SUCCESS;
}
LOCKSTEP_FAKE cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return recorder.Destroy(desc); }
LOCKSTEP_FAKE cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                                            cublasLtMatmulDescAttributes_t attribute, const void* value,
                                                            size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER && bytes == sizeof(desc->bias)) {
    std::memcpy(&desc->bias, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  int32_t* place = attribute == CUBLASLT_MATMUL_DESC_TRANSA     ? &desc->transpose[0]
                   : attribute == CUBLASLT_MATMUL_DESC_TRANSB   ? &desc->transpose[1]
                   : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE ? &desc->epilogue
                                                                : nullptr;
  if (place == nullptr || bytes != sizeof(*place)) return Refuse("attribute " + std::to_string(attribute));
  std::memcpy(place, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

LOCKSTEP_FAKE cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                                        uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = recorder.Make<cublasLtMatrixLayoutOpaque_t>(type, rows, columns, leading);
  return CUBLAS_STATUS_SUCCESS;
}
LOCKSTEP_FAKE cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return recorder.Destroy(layout);
}
LOCKSTEP_FAKE cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                              cublasLtMatrixLayoutAttribute_t attribute,
                                                              const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof(layout->batch)) {
    std::memcpy(&layout->batch, value, bytes);
  } else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof(layout->stride)) {
    std::memcpy(&layout->stride, value, bytes);
  } else {
    return Refuse("attribute " + std::to_string(attribute) + " of a layout, of " + std::to_string(bytes) + " bytes");
  }
  return CUBLAS_STATUS_SUCCESS;
}

LOCKSTEP_FAKE cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = recorder.Make<cublasLtMatmulPreferenceOpaque_t>();
  return CUBLAS_STATUS_SUCCESS;
}
LOCKSTEP_FAKE cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return recorder.Destroy(preference);
}
LOCKSTEP_FAKE cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                                  cublasLtMatmulPreferenceAttributes_t attribute,
                                                                  const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof(preference->workspace)) {
    std::memcpy(&preference->workspace, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == sizeof(preference->reduction_schemes)) {
    std::memcpy(&preference->reduction_schemes, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  const int matrix = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  if (matrix < 0 || matrix > 3 || bytes != sizeof(uint32_t))
    return Refuse("attribute " + std::to_string(attribute) + " of a preference");
  std::memcpy(&preference->alignment[matrix], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

LOCKSTEP_FAKE cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                                            cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                            cublasLtMatmulPreference_t preference, int requested,
                                                            cublasLtMatmulHeuristicResult_t* results, int* returned) {
  *returned = 0;
  const std::string wrong = Check(*desc, *a, *b, *c, *d);
  if (!wrong.empty()) return Refuse(wrong);
  if (preference->workspace < kAlgorithms[0].workspace) return CUBLAS_STATUS_SUCCESS;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < std::size(kAlgorithms); ++i) {
    if (!IsNamed(kAlgorithms[i], d->type, preference->reduction_schemes)) continue;
    numbers.insert(kAlgorithms[i].halves ? numbers.begin() : numbers.end(), i);
  }
  for (size_t number : numbers) {
    if (*returned == requested) break;
    cublasLtMatmulHeuristicResult_t& result = results[(*returned)++];
    result = {};
    result.algo.data = {
        kAlgorithm, d->rows, d->columns, static_cast<uint64_t>(d->batch), number, Packed(preference->alignment)};
    result.workspaceSize = kAlgorithms[number].workspace;
    result.state = kAlgorithms[number].state;
  }
  return CUBLAS_STATUS_SUCCESS;
}
LOCKSTEP_FAKE cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     const cublasLtMatmulAlgo_t* algo,
                                                     cublasLtMatmulHeuristicResult_t* result) {
  const std::string wrong = Check(*desc, *a, *b, *c, *d);
  if (!wrong.empty()) return Refuse(wrong);
  const Algorithm* const algorithm = AlgorithmOf(*algo, *d);
  if (algorithm == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  result->workspaceSize = algorithm->workspace;
  return algorithm->state;
}

LOCKSTEP_FAKE cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                                            const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                                            cublasLtMatrixLayout_t b, const void* beta, const void* c_data,
                                            cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d,
                                            const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                                            CUstream stream) {
  const DriverOfFolder& driver = TheDriver();
  if (handle == nullptr || driver.fake == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const std::string wrong = Check(*desc, *a, *b, *c, *d);
  if (!wrong.empty()) return Refuse(wrong);
  const Algorithm* const algorithm = AlgorithmOf(*algo, *d);
  if (algorithm == nullptr) return Refuse("an algorithm of another problem");
  if (algorithm->run != CUBLAS_STATUS_SUCCESS) return algorithm->run;
  const void* const matrices[] = {a_data, b_data, c_data, d_data};
  for (int i = 0; i < 4; ++i) {
    const uint64_t alignment = AlignmentIn(algo->data[kAlignments], i);
    if (reinterpret_cast<uintptr_t>(matrices[i]) % alignment == 0) continue;
    return Refuse(std::string("matrix ") + "ABCD"[i] + " is not aligned to " + std::to_string(alignment) +
                  ", as the heuristics were told");
  }
  const auto number = [&](const void* value) {
    return desc->scale == CUDA_R_64F ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
  };
  if (number(beta) != 0 || c_data != d_data) return Refuse("a sum with C, which the fake does not support");
  if (workspace_bytes < algorithm->workspace || driver.Find(workspace, workspace_bytes) == nullptr)
    return Refuse("no such workspace");
  Product product{*desc,
                  *a,
                  *b,
                  *d,
                  driver.Find(a_data, SpanOf(*a)),
                  driver.Find(b_data, SpanOf(*b)),
                  driver.Find(d_data, SpanOf(*d)),
                  number(alpha),
                  nullptr,
                  algorithm,
                  driver.fake,
                  stream};
  const bool has_bias = (desc->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  if (has_bias) product.bias = driver.Find(desc->bias, d->rows * SizeOf(DTypeOf(d->type)));
  if (product.a_data == nullptr || product.b_data == nullptr || product.d_data == nullptr ||
      (has_bias && product.bias == nullptr)) {
    return Refuse("a matrix is not in the GPU's memory");
  }
  recorder.Add(Describe(product, d->batch));
  const bool is_queued = driver.Enqueue(stream, [product] { product.Run(); });
  return is_queued ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace lockstep::cuda
