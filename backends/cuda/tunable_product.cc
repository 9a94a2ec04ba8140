#include "backends/cuda/tunable_product.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::cuda {
namespace {

constexpr size_t kWordDigits = 16;

std::string ToHex(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (uint64_t word : algorithm.data) {
    std::array<char, kWordDigits + 1> digits;
    std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(word));
    text += digits.data();
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> OfHex(std::string_view text) {
  cublasLtMatmulAlgo_t algorithm;
  if (text.size() != algorithm.data.size() * kWordDigits) return std::nullopt;
  if (text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  for (size_t i = 0; i < algorithm.data.size(); ++i) {
    const std::string digits(text.substr(i * kWordDigits, kWordDigits));
    algorithm.data[i] = std::strtoull(digits.c_str(), nullptr, 16);
  }
  return algorithm;
}

absl::StatusOr<TrialMemory> MemoryFor(const Product& product, CudaDevice& device) {
  const MatMulProblem& problem = product.problem();
  const std::array<uint64_t, 5> sizes = {problem.BytesOf(problem.first), problem.BytesOf(problem.second),
                                         problem.BiasBytes(), problem.ResultBytes(), product.workspace()};
  return TrialMemory::Allocate(sizes, "trying " + problem.ToString(), device);
}

ProductOperands OperandsIn(const TrialMemory& memory, const Product& product) {
  return {memory.part(0), memory.part(1), product.problem().has_bias() ? memory.part(2) : nullptr, memory.part(3),
          memory.part(4)};
}

}  // namespace

absl::Status TunableProduct::Take(const std::string& choice) {
  if (choice.empty()) {
    ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> first, product_->Candidates(1));
    product_->Choose(first.front());
    return absl::OkStatus();
  }
  const std::optional<cublasLtMatmulAlgo_t> algorithm = OfHex(choice);
  if (!algorithm) return InvalidArgument() << "\"" << choice << "\" is not an algorithm of cuBLASLt";
  RETURN_IF_ERROR(product_->Check(*algorithm));
  product_->Choose(*algorithm);
  return absl::OkStatus();
}

std::string TunableProduct::taken() const { return ToHex(product_->chosen()); }

absl::StatusOr<std::string> TunableProduct::Fastest(CudaDevice& device) {
  ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> candidates, product_->Candidates(kMostTimed));
  ASSIGN_OR_RETURN(const TrialMemory memory, MemoryFor(*product_, device));
  const ProductOperands operands = OperandsIn(memory, *product_);
  const auto queue = [&](size_t i) { return product_->Run(*device.stream(), operands, candidates[i]); };
  const absl::StatusOr<size_t> fastest = FastestOf(candidates.size(), queue, device);
  if (!fastest.ok()) return Annotate(fastest.status(), product_->problem().ToString());
  return ToHex(candidates[*fastest]);
}

absl::Status TunableProduct::RunOnce(CudaDevice& device) {
  ASSIGN_OR_RETURN(const TrialMemory memory, MemoryFor(*product_, device));
  RETURN_IF_ERROR(product_->Run(*device.stream(), OperandsIn(memory, *product_)));
  return device.Synchronize();
}

}  // namespace lockstep::cuda
