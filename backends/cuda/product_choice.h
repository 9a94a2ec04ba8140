// Chooses a cuBLASLt algorithm for each product of a program: the library's first choice, or the fastest of its
// recommendations, timed on the GPU when the program is loaded. Algorithms differ in their bits, so all ranks use the
// choice of rank 0, and a file keeps it for later programs (product_cache.h). One thread at a time may use it.

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
  std::string op;                    // the name in messages
};

struct TuneOptions {
  std::string machine;  // the GPU, driver and library, with their versions, for which timings and algorithms are valid
  std::string cache;    // path of the file; empty: none
};

// Uses the library's first choice, which is the same for equal problems on equal GPUs with equal libraries.
absl::Status TakeFirstChoices(std::span<const ProductOfOp> products);

// Uses the entries of rank 0's file for the machine if the library still supports them; otherwise times the algorithms
// on rank 0's GPU and adds the fastest to the file. All ranks must call it with the same products. Returns an error if
// a rank's library does not support rank 0's choice. Products of the same problem are timed once.
absl::Status TakeFastest(std::span<const ProductOfOp> products, const TuneOptions& options, CudaDevice& device,
                         Communicator& communicator);

// Runs each problem once with its choice, on memory of its own, and waits for it.
absl::Status RunEachOnce(std::span<const ProductOfOp> products, CudaDevice& device);

}  // namespace lockstep::cuda
