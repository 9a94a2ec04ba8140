#include "backends/backend.h"

#include <utility>

#include "runtime/comm/staged.h"

namespace lockstep {

RankDevice& RankDevice::operator=(RankDevice&& other) noexcept {
  communicator = std::exchange(other.communicator, nullptr);
  device_communicator = std::move(other.device_communicator);
  device = std::move(other.device);
  return *this;
}

RankDevice OpenHostDevice(Communicator& world) { return {CreateHostDevice(), nullptr, &world}; }

RankDevice OpenStagedDevice(std::unique_ptr<Device> device, Communicator& world, bool threads_share_it) {
  using Runs = StagedCommunicator::Runs;
  RankDevice opened{std::move(device), nullptr, &world};
  if (world.size() == 1) return opened;
  opened.device_communicator =
      std::make_unique<StagedCommunicator>(world, *opened.device, threads_share_it ? Runs::kInCaller : Runs::kInStream);
  opened.communicator = opened.device_communicator.get();
  return opened;
}

}  // namespace lockstep
