// Parameter servers: the program of a server, and a worker's client, which lockstep.kv uses. Values are bytes here;
// lockstep.kv checks their types.

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/server_update.h"
#include "python_bindings/arrays.h"
#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/released_gil.h"
#include "runtime/exclusive_use.h"
#include "runtime/server/job.h"

namespace lockstep::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Bytes = nb::ndarray<nb::ro, const uint8_t, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;

TensorType TypeOf(const std::string& dtype, const std::vector<int64_t>& shape) {
  const std::optional<DType> known = DTypeFromName(dtype);
  if (!known) ThrowIfError(InvalidArgument() << "unknown dtype '" << dtype << "'");
  return {*known, Shape(shape)};
}

using Type = std::tuple<std::string, std::vector<int64_t>>;  // dtype and shape

Type Describe(const TensorType& type) { return {std::string(DTypeName(type.dtype)), type.shape.dims()}; }

void CheckBytes(const std::string& key, const TensorType& type, size_t bytes) {
  if (bytes != type.num_bytes())
    ThrowIfError(InvalidArgument() << "key " << key << ": " << bytes << " bytes, but it is " << type);
}

// Runs f without the GIL, and ensures that no other thread uses the client.
template <typename F>
auto Alone(ServerClient& client, const F& f) {
  ReleasedGil released;
  const ExclusiveUse use(client.in_use());
  if (!use.ok()) ThrowIfError(use.Error("the store"));
  return f();
}

void Serve(double timeout) {
  ReleasedGil released;
  ThrowIfError(ServeJob(ValueOrThrow(MakeCompiledUpdates()), absl::Seconds(timeout)));
}

void Init(ServerClient& self, const std::string& key, const std::string& dtype, const std::vector<int64_t>& shape,
          const Bytes& value, bool synchronous, int64_t max_staleness, int64_t bigarray_bound) {
  const TensorType type = TypeOf(dtype, shape);
  CheckBytes(key, type, value.nbytes());
  Alone(self, [&] {
    ThrowIfError(
        self.Init(key, type, value.data(),
                  {.synchronous = synchronous, .max_staleness = max_staleness, .bigarray_bound = bigarray_bound}));
  });
}

void Push(ServerClient& self, const std::vector<std::pair<std::string, Bytes>>& gradients) {
  Alone(self, [&] {
    for (const auto& [key, gradient] : gradients) {
      CheckBytes(key, ValueOrThrow(self.TypeOf(key)), gradient.nbytes());
      ThrowIfError(self.Push(key, gradient.data()));
    }
  });
}

// All pulls run at the same time. None is in progress when this returns or throws: the client does not write after an
// error.
void Pull(ServerClient& self, const std::vector<std::pair<std::string, WritableBytes>>& values) {
  Alone(self, [&] {
    for (const auto& [key, value] : values) CheckBytes(key, ValueOrThrow(self.TypeOf(key)), value.nbytes());
    std::vector<ServerClient::Ticket> tickets;
    absl::Status status;
    for (const auto& [key, value] : values) {
      absl::StatusOr<ServerClient::Ticket> ticket = self.StartPull(key, value.data());
      if (ticket.ok()) tickets.push_back(*std::move(ticket));
      else if (status.ok()) status = ticket.status();
    }
    for (const ServerClient::Ticket& ticket : tickets) {
      if (const absl::Status each = self.Wait(ticket); status.ok()) status = each;
    }
    ThrowIfError(status);
  });
}

void PullRows(ServerClient& self, const std::string& key, const std::vector<int64_t>& rows,
              const WritableBytes& values) {
  Alone(self, [&] {
    const TensorType type = ValueOrThrow(self.TypeOf(key));
    const int64_t extent = type.shape.rank() == 0 ? 1 : type.shape.dims()[0];
    const size_t per_row = extent == 0 ? 0 : type.num_bytes() / static_cast<size_t>(extent);
    if (values.nbytes() != per_row * rows.size())
      ThrowIfError(InvalidArgument() << "key " << key << ": " << values.nbytes() << " bytes for " << rows.size()
                                     << " rows");
    ThrowIfError(self.PullRows(key, rows, values.data()));
  });
}

std::vector<Type> Pieces(ServerClient& self, const std::string& key) {
  return Alone(self, [&] {
    std::vector<Type> pieces;
    for (const TensorType& type : ValueOrThrow(self.PiecesOf(key))) pieces.push_back(Describe(type));
    return pieces;
  });
}

// `texts` has one update for each piece.
void SetUpdate(ServerClient& self, const std::string& key, const std::vector<std::string>& texts) {
  Alone(self, [&] {
    size_t piece = 0;
    ThrowIfError(self.SetUpdate(key, [&](const TensorType&) -> absl::StatusOr<std::string> {
      if (piece == texts.size()) return Internal() << "key " << key << " has more than " << piece << " pieces";
      return texts[piece++];
    }));
  });
}

std::map<std::string, Type> States(ServerClient& self, const std::string& key) {
  return Alone(self, [&] {
    std::map<std::string, Type> states;
    for (const auto& [name, type] : ValueOrThrow(self.States(key))) states[name] = Describe(type);
    return states;
  });
}

nb::object ReadServerState(ServerClient& self, const std::string& key, const std::string& state) {
  Tensor value = Alone(self, [&] { return ValueOrThrow(self.ReadState(key, state)); });
  return ToNumpy(value);
}

void WriteState(ServerClient& self, const std::string& key, const std::string& state, nb::handle value) {
  const InputArray array = CastToArray(value, "state " + state + " of key " + key);
  const Tensor tensor = CopyArray(array, "state " + state + " of key " + key);
  Alone(self, [&] { ThrowIfError(self.WriteState(key, state, tensor)); });
}

}  // namespace

void BindServers(nb::module_& module) {
  module.def("_serve", &Serve, "timeout"_a);
  module.def(
      "_servers", [] { return ValueOrThrow(ConnectToServersOfJob(absl::Seconds(600))); }, nb::rv_policy::reference,
      nb::sig("def _servers() -> _ServerClient | None"));
  nb::class_<ServerClient>(module, "_ServerClient")
      .def_prop_ro("rank", &ServerClient::rank)
      .def_prop_ro("workers", &ServerClient::workers)
      .def_prop_ro("servers", &ServerClient::servers)
      .def("init", &Init, "key"_a, "dtype"_a, "shape"_a, "value"_a, "synchronous"_a, "max_staleness"_a,
           "bigarray_bound"_a)
      .def(
          "type_of",
          [](ServerClient& self, const std::string& key) {
            return Alone(self, [&] { return Describe(ValueOrThrow(self.TypeOf(key))); });
          },
          "key"_a)
      .def("pieces", &Pieces, "key"_a)
      .def("push", &Push, "gradients"_a)
      .def("pull", &Pull, "values"_a)
      .def("pull_rows", &PullRows, "key"_a, "rows"_a, "values"_a)
      .def("flush", [](ServerClient& self) { Alone(self, [&] { ThrowIfError(self.Flush()); }); })
      .def(
          "exchange",
          [](ServerClient& self, const std::string& text) {
            return Alone(self, [&] { return ValueOrThrow(self.Exchange(text)); });
          },
          "text"_a)
      .def("set_update", &SetUpdate, "key"_a, "texts"_a)
      .def(
          "set",
          [](ServerClient& self, const std::string& setting, double value) {
            return Alone(self, [&] { return ValueOrThrow(self.Set(setting, value)); });
          },
          "setting"_a, "value"_a)
      .def("states", &States, "key"_a)
      .def("read_state", &ReadServerState, "key"_a, "state"_a)
      .def("write_state", &WriteState, "key"_a, "state"_a, "value"_a)
      .def("staleness", [](ServerClient& self) { return Alone(self, [&] { return ValueOrThrow(self.Staleness()); }); });
}

}  // namespace lockstep::python
