// Stores in a file the algorithms of products that were chosen by timing, so that later programs on the machine compute
// the same bits and load faster:
//
//   {"format": 1, "machines": {"NVIDIA H200, ..., cuBLASLt 13.1.0": {"1x[64,128]x[128,32] f32, aligned to 64":
//   "6c6f..."}}}
//
// An algorithm is 64 bytes of the library's, which NVIDIA says may be stored and reused with the same version; after
// reading one, the caller must let the library check it. A file that is damaged or has another format is ignored, with
// a warning, and replaced. Several processes may write at once: each adds to the entries of the others, and the file is
// complete at all times. If there is no file or it cannot be written, only the stored choices are lost. Any thread may
// call it.

#pragma once

#include <map>
#include <string>
#include <string_view>

#include "backends/cuda/cublaslt.h"
#include "core/status.h"

namespace lockstep::cuda {

using ProductAlgorithms = std::map<std::string, cublasLtMatmulAlgo_t>;  // by MatMulProblem::Key()

// Returns ${XDG_CACHE_HOME:-~/.cache}/lockstep/products.json; empty if neither XDG_CACHE_HOME nor HOME is set.
std::string ProductCachePath();

class ProductCache {
 public:
  // The entries of one machine. With an empty path nothing is stored.
  ProductCache(std::string path, std::string machine) : path_(std::move(path)), machine_(std::move(machine)) {}

  ProductAlgorithms Read() const;

  // Adds `timed`, and returns the file's entries for these problems. An entry that another process has added meanwhile
  // stays, unless it equals the one in `refused`.
  ProductAlgorithms Add(const ProductAlgorithms& timed, const ProductAlgorithms& refused) const;

 private:
  const std::string path_, machine_;
};

// The text form for other ranks: one line per problem.
std::string ToText(const ProductAlgorithms& algorithms);
absl::StatusOr<ProductAlgorithms> ProductAlgorithmsOf(std::string_view text);

}  // namespace lockstep::cuda
