// The file in which algorithms of products that were chosen by timing are kept, so that later programs on the machine
// compute the same bits, and load faster:
//
//   {"format": 1, "machines": {"NVIDIA H200, ..., cuBLASLt 13.1.0": {"1x[64,128]x[128,32] f32, aligned to 64":
//   "6c6f..."}}}
//
// An algorithm is the library's 64 bytes, which NVIDIA says may be stored and used again with the same version; who
// reads them has the library check them. A file that is damaged or of another format is ignored, with a warning, and
// written anew. Several processes may write at once: each adds to what the others wrote, and a file is whole at any
// time. Without a file, or where it cannot be written, all that is lost is the memory. Any thread.

#pragma once

#include <map>
#include <string>
#include <string_view>

#include "backends/cuda/cublaslt.h"
#include "core/status.h"

namespace lockstep::cuda {

using ProductAlgorithms = std::map<std::string, cublasLtMatmulAlgo_t>;  // by MatMulProblem::Key()

// ${XDG_CACHE_HOME:-~/.cache}/lockstep/products.json; empty where there is neither.
std::string ProductCachePath();

class ProductCache {
 public:
  // Of one machine. An empty path: nothing is kept.
  ProductCache(std::string path, std::string machine) : path_(std::move(path)), machine_(std::move(machine)) {}

  ProductAlgorithms Read() const;

  // Adds `timed`, and returns what the file then has for these problems: where another process has added one
  // meanwhile, that stays, unless it is what `refused` has for the problem.
  ProductAlgorithms Add(const ProductAlgorithms& timed, const ProductAlgorithms& refused) const;

 private:
  const std::string path_, machine_;
};

// For other ranks: a line for each problem.
std::string ToText(const ProductAlgorithms& algorithms);
absl::StatusOr<ProductAlgorithms> ProductAlgorithmsOf(std::string_view text);

}  // namespace lockstep::cuda
