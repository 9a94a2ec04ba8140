// Opens the fakes like the real libraries. For tests whose data contains //test/fake_cuda:libcuda.so.1.

#pragma once

#include "test/fake_cuda/fake_driver.h"
#include "test/fake_cuda/fake_nccl.h"

namespace lockstep::cuda {

struct LoadedFakeDriver {
  DriverApi api;
  FakeDriver& driver;
};

// The fake driver in its present state.
FakeDriver& TheFakeDriver();

// Creates new GPUs and calls cuInit. No context may be retained.
LoadedFakeDriver LoadFakeDriver(const FakeDriver::Options& options = {});

// For tests whose data also contains libnccl.so.2.
FakeNccl& TheFakeNccl();

}  // namespace lockstep::cuda
