// Properties of the machine for `lockstep doctor`, and the folders of NVIDIA's libraries in Python's packages. NVIDIA's
// libraries are opened only by the functions here that describe them.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "backends/backend.h"
#include "backends/cuda/machine.h"
#include "core/text.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/released_gil.h"
#include "runtime/cache_file.h"
#include "runtime/comm/mpi/mpi.h"
#include "runtime/comm/routes/cost.h"
#include "runtime/comm/routes/network_cache.h"
#include "runtime/cuda/library_search.h"
#include "runtime/exclusive_use.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr NetworkCosts kDefaultCosts;

// Differs between processes whose kernels may compute different bits.
std::string CpuFingerprint() { return ValueOrThrow(ValueOrThrow(CreateBackend("cpu"))->MakeTarget({})).fingerprint; }

// The paths are bytes of the file system, which may not be valid text.
void SetCudaFolders(const std::vector<nb::bytes>& folders) {
  std::vector<std::string> paths;
  for (const nb::bytes& folder : folders) paths.emplace_back(folder.c_str(), folder.size());
  cuda::SetPythonFolders(std::move(paths));
}

nb::list Gpus() {
  std::vector<cuda::VisibleGpu> gpus;
  {
    ReleasedGil released;
    gpus = ValueOrThrow(cuda::DescribeGpus(cuda::PlacesOfProcess()));
  }
  nb::list list;
  for (const cuda::VisibleGpu& gpu : gpus) {
    nb::dict described;
    described["name"] = ToValidText(gpu.name);
    described["uuid"] = gpu.uuid;
    described["capability"] = nb::make_tuple(gpu.capability_major, gpu.capability_minor);
    described["multiprocessors"] = gpu.multiprocessors;
    described["memory_bytes"] = gpu.memory_bytes;
    described["code"] = gpu.code;
    described["unfit"] = gpu.unfit;
    list.append(described);
  }
  return list;
}

nb::list CudaLibraries() {
  std::vector<cuda::LibraryDescription> libraries;
  {
    ReleasedGil released;
    libraries = cuda::DescribeLibraries(cuda::PlacesOfProcess());
  }
  nb::list list;
  for (const cuda::LibraryDescription& library : libraries) {
    nb::dict described;
    described["name"] = library.name;
    described["install"] = library.install;
    described["error"] = ToValidText(std::string(library.status.message()));
    described["version"] = library.status.ok() ? library.from.version.ToString() : "";
    described["path"] = ToValidText(library.from.path);
    list.append(described);
  }
  return list;
}

// Returns the seconds of each call of all_reduce (runtime/comm/routes/cost.h).
std::vector<double> Times(Communicator& world, int64_t bytes, int calls) {
  ReleasedGil released;
  const ExclusiveUse use(world.in_use());
  if (!use.ok()) ThrowIfError(use.Error("the communicator for a measurement"));
  return ValueOrThrow(TimeAllReduce(world, bytes, calls));
}

// Returns bytes and nanoseconds for each axis of the mesh (runtime/comm/routes/cost.h).
std::vector<std::vector<std::pair<int64_t, int64_t>>> Costs(Communicator& world,
                                                            const std::vector<std::pair<std::string, int64_t>>& mesh) {
  ReleasedGil released;
  const ExclusiveUse use(world.in_use());
  if (!use.ok()) ThrowIfError(use.Error("the communicator for a measurement"));
  std::vector<std::vector<std::pair<int64_t, int64_t>>> costs;
  for (const std::vector<SizeCost>& of_axis : ValueOrThrow(MeasureCosts(world, ValueOrThrow(MeshOf(mesh))))) {
    costs.emplace_back();
    for (const SizeCost& cost : of_axis) costs.back().emplace_back(cost.bytes, cost.nanoseconds);
  }
  return costs;
}

// Returns the number of sequential messages, and the bytes that leave a host.
nb::tuple TravelOfHosts(const std::string& name, int64_t bytes, int64_t hosts, int64_t ranks_a_host, double latency,
                        double bandwidth) {
  const NetworkCosts costs{.latency = latency, .byte_to_all = 1 / bandwidth, .byte_to_neighbour = 1 / bandwidth};
  const Traffic traffic = ValueOrThrow(TrafficBetweenHosts(name, bytes, hosts, ranks_a_host, costs));
  return nb::make_tuple(traffic.messages, traffic.bytes);
}

// Returns the measured networks, with their routes for any order of additions, and the sizes in bytes from which
// each route is used.
nb::list Networks() {
  nb::list list;
  for (const Network& network : KnownNetworks(CacheFolder())) {
    const RouteOptions options{
        .groups = network.hosts, .largest_group = network.ranks, .policy = {.costs = network.costs}};
    nb::dict routes;
    for (const CollectiveOp op :
         CollectiveOpsWith([](const CollectiveTraits& traits) { return traits.has_routes(); })) {
      nb::list ranges;
      for (const RouteRange& range : RoutesBySize(op, options))
        ranges.append(nb::make_tuple(range.from, std::string(RouteName(range.route))));
      routes[std::string(TraitsOf(op).name).c_str()] = ranges;
    }
    nb::dict described;
    described["cluster"] = ToValidText(network.cluster);
    described["latency"] = network.costs.latency;
    described["message"] = network.costs.message;
    described["byte_to_all"] = network.costs.byte_to_all;
    described["byte_to_neighbour"] = network.costs.byte_to_neighbour;
    described["routes"] = routes;
    list.append(described);
  }
  return list;
}

}  // namespace

void BindMachine(nb::module_& module) {
  module.def("_set_cuda_folders", &SetCudaFolders, "folders"_a);
  module.def("_cpu_fingerprint", &CpuFingerprint);
  module.def("_mpi_version", [] { return ValueOrThrow(MpiLibraryVersion()); });
  module.def("_time_all_reduce", &Times, "world"_a, "bytes"_a, "calls"_a);
  module.def("_measure_costs", &Costs, "world"_a, "mesh"_a,
             nb::sig("def _measure_costs(world: Communicator, mesh: collections.abc.Sequence[tuple[str, int]]) -> "
                     "list[list[tuple[int, int]]]"));
  module.def("_travel", &TravelOfHosts, "name"_a, "bytes"_a, "hosts"_a, "ranks_a_host"_a,
             "latency"_a = kDefaultCosts.latency, "bandwidth"_a = 1 / kDefaultCosts.byte_to_all,
             nb::sig("def _travel(name: str, bytes: int, hosts: int, ranks_a_host: int, latency: float = 2.5e-05, "
                     "bandwidth: float = 1250000000.0) -> tuple[int, int]"));
  module.def("_networks", &Networks, nb::sig("def _networks() -> list[dict[str, typing.Any]]"));
  module.def("_gpus", &Gpus, nb::sig("def _gpus() -> list[dict[str, typing.Any]]"));
  module.def("_cuda_libraries", &CudaLibraries, nb::sig("def _cuda_libraries() -> list[dict[str, str]]"));
}

}  // namespace lockstep::python
