// A CUDA driver 13.0. LOCKSTEP_FAKE_GPUS sets the number of GPUs, 1 by default; LOCKSTEP_FAKE_CAPABILITY their compute
// capability, 90 (9.0) by default.

#include "runtime/cuda/driver.h"

#include <cstdlib>
#include <cstring>

#include "test/fake_cuda/bare/bare.h"

using namespace lockstep::cuda;  // NOLINT: the vendor's types have no namespace

namespace {

int NumberOr(int number, const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? number : std::atoi(value);
}
int Gpus() { return NumberOr(1, "LOCKSTEP_FAKE_GPUS"); }
int Capability() { return NumberOr(90, "LOCKSTEP_FAKE_CAPABILITY"); }

}  // namespace

LOCKSTEP_BARE CUresult cuDriverGetVersion(int* version) {
  *version = lockstep::bare::VersionOr(13000, reinterpret_cast<void*>(&cuDriverGetVersion));
  return CUDA_SUCCESS;
}

LOCKSTEP_BARE CUresult cuInit(unsigned) { return Gpus() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }

LOCKSTEP_BARE CUresult cuDeviceGetCount(int* count) {
  *count = Gpus();
  return CUDA_SUCCESS;
}

LOCKSTEP_BARE CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

LOCKSTEP_BARE CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(length));
  return CUDA_SUCCESS;
}

// 00010203-0405-0607-0809-0a0b0c0dfe00 for GPU 0; the last byte is the GPU's number.
LOCKSTEP_BARE CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  for (int i = 0; i < 14; ++i) uuid->bytes[i] = static_cast<char>(i);
  uuid->bytes[14] = static_cast<char>(0xfe);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

LOCKSTEP_BARE CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = size_t{80} << 30;
  return CUDA_SUCCESS;
}

LOCKSTEP_BARE CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? Capability() / 10
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? Capability() % 10
           : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? 132
                                                                       : 0;
  return CUDA_SUCCESS;
}

LOCKSTEP_BARE CUresult cuGetErrorName(CUresult result, const char** name) {
  if (result != CUDA_ERROR_NO_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  *name = "CUDA_ERROR_NO_DEVICE";
  return CUDA_SUCCESS;
}

LOCKSTEP_BARE CUresult cuGetErrorString(CUresult result, const char** text) {
  if (result != CUDA_ERROR_NO_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  *text = "no CUDA-capable device is detected";
  return CUDA_SUCCESS;
}
