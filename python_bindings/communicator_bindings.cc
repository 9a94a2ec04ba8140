// lockstep.Communicator.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/released_gil.h"
#include "runtime/comm/in_process.h"
#include "runtime/comm/mpi/from_environment.h"
#include "runtime/comm/mpi/mpi.h"
#include "runtime/communicator.h"
#include "runtime/exclusive_use.h"
#include "runtime/server/job.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr double kDefaultTimeout = 600;

// Returns the value if it passes the check of that name in lockstep/_base/checks.py.
nb::object Checked(const char* check, const char* what, nb::handle value) {
  return nb::module_::import_("lockstep._base.checks").attr(check)(what, value);
}

Communicator::Options OptionsOf(nb::handle timeout) {
  return {.timeout = absl::Seconds(nb::cast<double>(Checked("positive", "timeout", timeout)))};
}

// Returns true if the value is `second`, false if it is `first`. Raises an Error otherwise.
bool IsSecond(const char* what, nb::handle value, const char* first, const char* second) {
  const nb::object checked =
      nb::module_::import_("lockstep._base.checks").attr("choice")(what, value, nb::make_tuple(first, second));
  return nb::cast<std::string>(checked) == second;
}

// The options that communicators of processes have in common.
WorldOptions OptionsOf(nb::handle timeout, nb::handle order, nb::handle routes) {
  WorldOptions options{.communicator = OptionsOf(timeout)};
  options.communicator.in_rank_order = IsSecond("order", order, "any", "rank");
  if (IsSecond("routes", routes, "measured", "default")) options.routes = WorldOptions::Routes::kDefault;
  return options;
}

using MakeWorld = absl::StatusOr<std::unique_ptr<Communicator>> (*)(const WorldOptions& options);

nb::object WorldOf(MakeWorld make, const WorldOptions& options) {
  std::unique_ptr<Communicator> communicator;
  {
    ReleasedGil released;
    communicator = ValueOrThrow(make(options));
    // Servers detect from connections which workers are alive, so all workers connect even if they use no servers.
    const absl::Status connected = ConnectToServersOfJob(options.communicator.timeout).status();
    if (!connected.ok()) communicator->Abort(connected);
    ThrowIfError(connected);
  }
  nb::object world = nb::cast(std::move(communicator));
  world.attr("_in_rank_order") = options.communicator.in_rank_order;
  nb::module_::import_("lockstep._base.excepthook").attr("abort_on_exception")(world);
  return world;
}

nb::object MakeMpi(nb::handle timeout, nb::handle between_hosts, nb::handle order, nb::handle routes) {
  WorldOptions options = OptionsOf(timeout, order, routes);
  if (IsSecond("between_hosts", between_hosts, "tcp", "mpi")) options.between_hosts = WorldOptions::BetweenHosts::kMpi;
  return WorldOf(CreateMpi, options);
}

nb::object MakeFromEnvironment(nb::handle timeout, nb::handle order, nb::handle routes) {
  return WorldOf(CreateFromEnvironment, OptionsOf(timeout, order, routes));
}

std::vector<std::unique_ptr<Communicator>> MakeInProcess(nb::handle n, nb::handle timeout) {
  const auto ranks = nb::cast<int64_t>(Checked("integer", "in_process: n", n));
  // Each rank needs a thread, so a larger number makes no sense. It fits an int.
  if (ranks < 1 || ranks > 65536)
    ThrowIfError(InvalidArgument() << "in_process: " << ranks << " ranks, expected at least 1 and at most 65536");
  return ValueOrThrow(CreateInProcess(static_cast<int>(ranks), OptionsOf(timeout)));
}

std::string HostOf(const Communicator& self, nb::handle rank) {
  const auto number = nb::cast<int64_t>(Checked("integer", "host: rank", rank));
  if (number < 0 || number >= self.size())
    ThrowIfError(InvalidArgument() << "rank " << number << " of a world of " << self.size());
  return self.host(static_cast<int>(number));
}

void Barrier(Communicator& self) {
  ReleasedGil released;
  const ExclusiveUse use(self.in_use());
  if (!use.ok()) ThrowIfError(use.Error("barrier: the communicator"));
  ThrowIfError(self.Barrier("barrier"));
}

nb::list GatherBytes(Communicator& self, nb::handle bytes, nb::handle label) {
  if (!nb::isinstance<nb::bytes>(bytes)) {
    ThrowIfError(InvalidArgument() << "gather_bytes: bytes is " << nb::cast<std::string>(nb::repr(bytes))
                                   << ", expected bytes");
  }
  const nb::bytes own = nb::borrow<nb::bytes>(bytes);
  const std::string mine(own.c_str(), own.size()), name = TextOf(label, "gather_bytes: label");
  std::vector<std::string> all;
  {
    ReleasedGil released;
    const ExclusiveUse use(self.in_use());
    if (!use.ok()) ThrowIfError(use.Error("gather_bytes: the communicator"));
    all = ValueOrThrow(self.AllGatherBytes(mine, name));
  }
  nb::list result;
  for (const std::string& each : all) result.append(nb::bytes(each.data(), each.size()));
  return result;
}

void Abort(Communicator& self, nb::handle reason) {
  const auto text = nb::cast<std::string>(Checked("text", "abort: the reason", reason));
  ReleasedGil released;
  self.Abort(absl::AbortedError(text));
}

std::string ToText(const Communicator& self) {
  return "<lockstep.Communicator rank " + std::to_string(self.rank()) + " of " + std::to_string(self.size()) + ", " +
         self.transport() + ">";
}

using CommunicatorClass = nb::class_<Communicator>;

void BindMakers(CommunicatorClass& communicator) {
  communicator
      .def_static(
          "mpi", &MakeMpi, "timeout"_a.none() = kDefaultTimeout, "between_hosts"_a.none() = "tcp",
          "order"_a.none() = "any", "routes"_a.none() = "measured",
          "The communicator of the ranks that `mpirun` started; one rank without mpirun. Initialises MPI if\n"
          "necessary. In a job with parameter servers, these are the workers. LOCKSTEP_WORKERS and LOCKSTEP_SERVERS\n"
          "in the environment are the numbers of workers and servers.\n\n"
          "If an exception ends this process, the other ranks fail with an Error that names this rank, instead of\n"
          "waiting.\n\n"
          "Args:\n"
          "  timeout: the longest time, in seconds, that a call waits for a rank that is alive and does not arrive.\n"
          "  between_hosts: the transport of messages between hosts. \"tcp\": own connections through the network\n"
          "    interfaces whose names begin as in LOCKSTEP_INTERFACE (\"eth0\", \"ib,eth\"), or through all. \"mpi\":\n"
          "    MPI, which may know faster networks of a cluster. Equal on all ranks.\n"
          "  order: the order of additions in a reduction. \"rank\": the order of ranks, so that every distribution\n"
          "    of ranks among hosts gives the same bits. \"any\": faster. Ranks of a host may be added first, and\n"
          "    many hosts in the order of a ring or a tree. The bits are still the same on all ranks, and in all runs\n"
          "    with the same distribution of ranks and the same routes. Equal on all ranks.\n"
          "  routes: the basis for choosing the routes between more than two hosts. \"measured\": measurements of the\n"
          "    network. They take at most a second when these hosts first have a communicator, and are stored in\n"
          "    ~/.cache/lockstep/networks of rank 0. \"default\": a network of 10 Gb/s, whatever the real one.\n"
          "    `lockstep doctor` shows the routes. Equal on all ranks.",
          nb::sig("def mpi(timeout: float = 600.0, between_hosts: str = 'tcp', order: str = 'any', routes: str = "
                  "'measured') -> Communicator"))
      .def_static(
          "from_environment", &MakeFromEnvironment, "timeout"_a.none() = kDefaultTimeout, "order"_a.none() = "any",
          "routes"_a.none() = "measured",
          "The communicator of the ranks of this job, with or without MPI. Ranks that `lockstep launch`, `torchrun`,\n"
          "accelerate or Kubernetes' PyTorchJob started meet at rank 0, by RANK, WORLD_SIZE, MASTER_ADDR and\n"
          "MASTER_PORT in the environment, or by the file LOCKSTEP_RENDEZVOUS_FILE. Tasks of `srun` meet by Slurm's\n"
          "variables. Otherwise it is `mpi()`: the ranks of `mpirun`, or one rank.\n\n"
          "Where torchrun's agent uses MASTER_PORT itself, ranks meet at the next port. Ranks may come in any order.\n"
          "Those that do not come within the timeout are named by all others. With a secret in LOCKSTEP_SECRET, or in\n"
          "the file LOCKSTEP_SECRET_FILE, ranks prove that they belong together. Parameter servers need `mpirun`.\n\n"
          "Example:\n"
          "  >>> world = lockstep.Communicator.from_environment()  # torchrun --nproc-per-node 2 train.py\n\n"
          "Args:\n"
          "  timeout, order, routes: as of `mpi()`.",
          nb::sig("def from_environment(timeout: float = 600.0, order: str = 'any', routes: str = 'measured') "
                  "-> Communicator"))
      .def_static(
          "single", [] { return ValueOrThrow(CreateSingle()); }, "A world of one rank, without communication.")
      .def_static("in_process", &MakeInProcess, "n"_a.none(), "timeout"_a.none() = kDefaultTimeout,
                  "Returns n communicators of one world, one for each of n threads of this process.\n\n"
                  "Example:\n"
                  "  >>> worlds = lockstep.Communicator.in_process(4)\n"
                  "  >>> threads = [threading.Thread(target=train, args=(world,)) for world in worlds]",
                  nb::sig("def in_process(n: int, timeout: float = 600.0) -> list[Communicator]"));
}

void BindCommunicatorFacts(CommunicatorClass& communicator) {
  communicator.def_prop_ro("rank", &Communicator::rank, "This rank's number, from 0.")
      .def_prop_ro("size", &Communicator::size, "The number of ranks.")
      .def_prop_ro("transport", &Communicator::transport,
                   "The transport: \"in_process\", \"shared_memory\", \"mpi\", \"rendezvous\".")
      .def_prop_ro("ranks_on_this_host", &Communicator::ranks_on_this_host,
                   "The number of ranks on this rank's host, including this one.")
      .def("host", &HostOf, "rank"_a.none(), "The name of the host on which a rank runs.",
           nb::sig("def host(self, rank: int) -> str"))
      .def("__repr__", &ToText);
}

// Returns the result of the function of that name in lockstep/_compile/collectives.py.
template <typename... Arguments>
nb::object Collective(const char* name, const Arguments&... arguments) {
  return nb::module_::import_("lockstep._compile.collectives").attr(name)(arguments...);
}

void BindArrayCalls(CommunicatorClass& communicator) {
  communicator
      .def(
          "all_reduce",
          [](nb::handle self, nb::handle array, nb::handle kind) {
            return Collective("all_reduce", self, array, kind);
          },
          "array"_a.none(), "kind"_a.none() = "sum",
          "Reduces the arrays of all ranks element by element: their sum, or another reduction (`kind`). Returns a\n"
          "new array of the same shape and dtype on every rank. Collective, with equal shapes, dtypes and kinds.\n\n"
          "    loss = float(world.all_reduce(loss, \"mean\"))\n\n"
          "Args:\n"
          "  array: a NumPy array of booleans, integers or real floats (bfloat16 of ml_dtypes), or a value that NumPy\n"
          "    converts: a number, which becomes f64, i64 or bool, a list, or a CPU tensor of torch. Gradients do not\n"
          "    pass.\n"
          "  kind: \"sum\", \"mean\", \"min\", \"max\" or \"prod\". Integers are added modulo 2^bits, and their mean\n"
          "    is truncated. For booleans, \"sum\" and \"max\" are true if any is true, the others if all are true.\n\n"
          "Raises:\n"
          "  Error: the value is not such an array; two ranks make different calls or have different shapes; or a\n"
          "    rank has died or does not arrive. The message names the ranks.",
          nb::sig("def all_reduce(self, array: Any, kind: str = 'sum') -> numpy.ndarray"))
      .def(
          "broadcast",
          [](nb::handle self, nb::handle array, nb::handle root) { return Collective("broadcast", self, array, root); },
          "array"_a.none(), "root"_a.none() = 0,
          "Returns rank root's array as a new array on every rank. Collective, with equal roots, shapes and dtypes.\n"
          "Only the root's array is read. Arrays and errors are as for `all_reduce`.",
          nb::sig("def broadcast(self, array: Any, root: int = 0) -> numpy.ndarray"))
      .def(
          "all_gather", [](nb::handle self, nb::handle array) { return Collective("all_gather", self, array); },
          "array"_a.none(),
          "Returns the arrays of all ranks, by rank, as a new array [size, *shape] on every rank. Collective, with\n"
          "equal shapes and dtypes. Arrays and errors are as for `all_reduce`.",
          nb::sig("def all_gather(self, array: Any) -> numpy.ndarray"));
}

void BindCollectiveCalls(CommunicatorClass& communicator) {
  communicator.def("barrier", &Barrier, "Returns when all ranks have called it.")
      .def("gather_bytes", &GatherBytes, "bytes"_a.none(), "label"_a.none() = "gather_bytes",
           "Returns the bytes of all ranks, by rank, on every rank. Collective. Messages about a rank that does not\n"
           "arrive or makes another call contain the label, which is equal on all ranks.",
           nb::sig("def gather_bytes(self, bytes: bytes, label: str = 'gather_bytes') -> list[bytes]"))
      .def("abort", &Abort, "reason"_a.none(),
           "Makes calls in which other ranks wait for this one fail, with an Error that names this rank and the\n"
           "reason. An exception that ends a process under mpirun does this automatically.",
           nb::sig("def abort(self, reason: str) -> None"));
}

}  // namespace

void BindCommunicator(nb::module_& module) {
  CommunicatorClass communicator(module, "Communicator", nb::is_weak_referenceable(),
                                 nb::dynamic_attr(),  // _in_rank_order: set by mpi(), read by compile()
                                 "A rank's communicator with the other ranks of its world. Made by mpi(), single() or\n"
                                 "in_process(), and passed to compile() and data.batches(). Only one thread may use\n"
                                 "it at a time.");
  BindMakers(communicator);
  BindCommunicatorFacts(communicator);
  BindCollectiveCalls(communicator);
  BindArrayCalls(communicator);
}

}  // namespace lockstep::python
