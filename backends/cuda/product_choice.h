// Which of cuBLASLt's algorithms each product of a program takes: the library's first choice, or the fastest of what it
// advises, timed on the GPU when the program is loaded. Algorithms differ in their bits, so ranks never choose apart:
// rank 0's choice is that of all, and a file keeps it for later programs (product_cache.h). One thread at a time.

#pragma once

#include <memory>
#include <span>
#include <string>

#include "backends/cuda/product.h"
#include "core/status.h"
#include "runtime/communicator.h"
#include "runtime/cuda/device.h"

namespace lockstep::cuda {

struct ProductOfOp {
  std::shared_ptr<Product> product;  // open
  std::string op;                    // what messages call it
};

struct TuneOptions {
  std::string machine;  // what timings and algorithms hold for: GPU, driver, library, with their versions
  std::string cache;    // path of the file; empty: none
};

// The library's first choice: the same for equal problems on equal GPUs with equal libraries.
absl::Status TakeFirstChoices(std::span<const ProductOfOp> products);

// What the file of rank 0 has for the machine, if the library still takes it; else the fastest on rank 0's GPU, which
// is added to the file. All ranks call it with the same products. An error if a rank's library does not take what rank
// 0 chose. Products that are one problem are timed once.
absl::Status TakeFastest(std::span<const ProductOfOp> products, const TuneOptions& options, CudaDevice& device,
                         Communicator& communicator);

}  // namespace lockstep::cuda
