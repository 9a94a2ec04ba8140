// Opens the fakes as the real libraries are opened. For tests whose data holds //test/fake_cuda:libcuda.so.1.

#pragma once

#include "test/fake_cuda/fake_driver.h"
#include "test/fake_cuda/fake_nccl.h"

namespace lockstep::cuda {

struct LoadedFakeDriver {
  DriverApi api;
  FakeDriver& driver;
};

// As it is.
FakeDriver& TheFakeDriver();

// GPUs made anew, and cuInit called. No context may be retained.
LoadedFakeDriver LoadFakeDriver(const FakeDriver::Options& options = {});

// For tests whose data holds libnccl.so.2, too.
FakeNccl& TheFakeNccl();

}  // namespace lockstep::cuda
