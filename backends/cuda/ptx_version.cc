#include "backends/cuda/ptx_version.h"

#include <charconv>
#include <string>

#include "core/status.h"

namespace lockstep::cuda {
namespace {

std::string Short(const Version& version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor);
}

}  // namespace

Version PtxVersionOf(std::string_view text) {
  constexpr std::string_view kVersion = ".version ";
  const size_t found = text.find(kVersion);
  if (found == std::string_view::npos) return {};
  text.remove_prefix(found + kVersion.size());
  Version version;
  const char* const end = text.data() + text.size();
  const auto [dot, error] = std::from_chars(text.data(), end, version.major);
  if (error == std::errc() && dot != end && *dot == '.') std::from_chars(dot + 1, end, version.minor);
  return version;
}

// By the release history of the PTX ISA. CUDA 12.6 kept PTX 8.5.
Version CudaThatReads(const Version& ptx) {
  constexpr Version kAfterTheGap = {8, 6, 0};
  return {ptx.major + 4, ptx.minor + (ptx.major == kAfterTheGap.major && ptx >= kAfterTheGap ? 1 : 0), 0};
}

std::string DescribePtx(const Version& ptx) {
  return "PTX " + Short(ptx) + ", for a driver of CUDA " + Short(CudaThatReads(ptx)) + " or later";
}

absl::Status CheckReads(const DriverApi& driver, std::string_view text) {
  const Version ptx = PtxVersionOf(text);
  if (ptx == Version{} || driver.from.version >= CudaThatReads(ptx)) return absl::OkStatus();
  return FailedPrecondition() << "the kernel is " << DescribePtx(ptx) << ", and the driver " << driver.from.path
                              << " supports CUDA " << Short(driver.from.version) << ": update the GPU's driver";
}

}  // namespace lockstep::cuda
