// The algorithms of a product, for tuning.h. A choice is the 64 bytes of cuBLASLt's algorithm in hexadecimal digits,
// which NVIDIA says may be stored and reused with the same version. One thread at a time may use it.

#pragma once

#include <memory>
#include <string>

#include "backends/cuda/product.h"
#include "backends/cuda/tuning.h"

namespace lockstep::cuda {

class TunableProduct final : public Tunable {
 public:
  explicit TunableProduct(std::shared_ptr<Product> product) : product_(std::move(product)) {}

  std::string Key() const override { return product_->problem().Key(); }
  absl::Status Open() override { return product_->Open(); }
  absl::Status Take(const std::string& choice) override;
  std::string taken() const override;
  absl::StatusOr<std::string> Fastest(CudaDevice& device) override;
  absl::Status RunOnce(CudaDevice& device) override;

 private:
  const std::shared_ptr<Product> product_;
};

}  // namespace lockstep::cuda
