// lockstep.Communicator.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "runtime/comm/in_process.h"
#include "runtime/comm/mpi.h"
#include "runtime/communicator.h"
#include "runtime/exclusive_use.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

Communicator::Options OptionsOf(double timeout) {
  if (!(timeout > 0)) ThrowIfError(InvalidArgument() << "timeout is " << timeout << ", expected seconds > 0");
  return {.timeout = absl::Seconds(timeout)};
}

constexpr double kDefaultTimeout = 600;

}  // namespace

void BindCommunicator(nb::module_& module) {
  nb::class_<Communicator>(
      module, "Communicator", nb::is_weak_referenceable(),
      "One rank's end of a job: who it is, and how it talks to the others. Made by mpi(), single() or in_process();\n"
      "an argument of compile() and of data.batches(). One thread at a time uses a Communicator.")
      .def_static(
          "mpi",
          [](double timeout) {
            std::unique_ptr<Communicator> communicator;
            {
              nb::gil_scoped_release release;
              communicator = ValueOrThrow(CreateMpi({.communicator = OptionsOf(timeout)}));
            }
            nb::object world = nb::cast(std::move(communicator));
            nb::module_::import_("lockstep._excepthook").attr("abort_on_exception")(world);
            return world;
          },
          "timeout"_a = kDefaultTimeout,
          "The ranks that `mpirun` started; one rank without it. Initialises MPI if nobody has.\n\n"
          "An exception that ends this process makes the other ranks fail with an Error that names this one, instead "
          "of waiting.\n\n"
          "Args:\n"
          "  timeout: how many seconds a call waits for a rank that is alive and does not arrive.",
          nb::sig("def mpi(timeout: float = 600.0) -> Communicator"))
      .def_static(
          "single", [] { return ValueOrThrow(CreateSingle()); }, "A world of one rank: nothing is communicated.")
      .def_static(
          "in_process",
          [](int n, double timeout) {
            if (n < 1) ThrowIfError(InvalidArgument() << "in_process: " << n << " ranks, expected at least 1");
            return ValueOrThrow(CreateInProcess(n, OptionsOf(timeout)));
          },
          "n"_a, "timeout"_a = kDefaultTimeout,
          "n communicators of one world, one for each of n threads of this process.\n\n"
          "Example:\n"
          "  >>> worlds = lockstep.Communicator.in_process(4)\n"
          "  >>> threads = [threading.Thread(target=train, args=(world,)) for world in worlds]")
      .def_prop_ro("rank", &Communicator::rank, "This rank's number, from 0.")
      .def_prop_ro("size", &Communicator::size, "The number of ranks.")
      .def_prop_ro("transport", &Communicator::transport, "How ranks talk: \"in_process\", \"shared_memory\", \"mpi\".")
      .def_prop_ro("ranks_on_this_host", &Communicator::ranks_on_this_host,
                   "How many ranks run on this rank's host, itself included.")
      .def(
          "host",
          [](const Communicator& self, int rank) {
            if (rank < 0 || rank >= self.size())
              ThrowIfError(InvalidArgument() << "rank " << rank << " of a world of " << self.size());
            return self.host(rank);
          },
          "rank"_a, "The name of the host on which a rank runs.")
      .def(
          "barrier",
          [](Communicator& self) {
            nb::gil_scoped_release release;
            const ExclusiveUse use(self.in_use());
            if (!use.ok()) ThrowIfError(use.Error("barrier: the communicator"));
            ThrowIfError(self.Barrier("barrier"));
          },
          "Returns when all ranks have called it.")
      .def(
          "gather_bytes",
          [](Communicator& self, nb::bytes bytes) {
            const std::string mine(bytes.c_str(), bytes.size());
            std::vector<std::string> all;
            {
              nb::gil_scoped_release release;
              const ExclusiveUse use(self.in_use());
              if (!use.ok()) ThrowIfError(use.Error("gather_bytes: the communicator"));
              all = ValueOrThrow(self.AllGatherBytes(mine, "gather_bytes"));
            }
            nb::list result;
            for (const std::string& each : all) result.append(nb::bytes(each.data(), each.size()));
            return result;
          },
          "bytes"_a, "Every rank's bytes, by rank, on every rank.",
          nb::sig("def gather_bytes(self, bytes: bytes) -> list[bytes]"))
      .def(
          "abort", [](Communicator& self, const std::string& reason) { self.Abort(absl::AbortedError(reason)); },
          "reason"_a,
          "Makes what the other ranks wait in fail, with an Error that names this rank and the reason.\n"
          "An exception that ends a process under mpirun does this by itself.",
          nb::call_guard<nb::gil_scoped_release>())
      .def("__repr__", [](const Communicator& self) {
        return "<lockstep.Communicator rank " + std::to_string(self.rank()) + " of " + std::to_string(self.size()) +
               ", " + self.transport() + ">";
      });
}

}  // namespace lockstep::python
