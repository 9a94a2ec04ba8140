"""A cache of exported PyTorch modules: graphs by the module's definition, without trained values."""

from __future__ import annotations

import enum
import functools
import hashlib
import importlib.metadata
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lockstep
from .._base import atomic, checks
from .._base.errors import Error
from .._base.log import log
from .._checkpoint.thread import naming
from .._graph import graph_file
from .._lockstep import Graph
from .._version import VERSION

if TYPE_CHECKING:
    import torch

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), np.generic, slice, range)
_OF_A_CLASS = {"__doc__", "__module__", "__qualname__", "__firstlineno__"}
_LIBRARIES = {"torch", "numpy", "lockstep"} | (sys.stdlib_module_names - {"__main__"})


def folder_of(cache: Any) -> str | None:
    """The folder that the option `cache` names; None if there is no cache."""
    if cache is None or cache is False:
        return None
    if cache is not True:
        return checks.path(cache)
    above = os.environ.get("XDG_CACHE_HOME", "")
    return str((Path(above) if os.path.isabs(above) else Path.home() / ".cache") / "lockstep" / "torch")


def cached(
    folder: str, module: torch.nn.Module, inputs: Mapping[str, Any], options: Any, export: Callable[[], Graph]
) -> Graph:
    """Returns the graph of the module from the folder, with the module's current values. If the folder has none, calls
    `export`, and returns the graph after writing and reading it, so that ranks with and without a cached graph have
    equal programs. A folder that cannot be written causes a warning."""
    path = os.path.join(folder, f"{_key(module, inputs, options)}.graph")
    tensors = dict([*module.named_parameters(), *module.named_buffers()])
    graph = _found(path, tensors)
    if graph is None:
        graph = export()
        states = _states(graph, tensors)
        content = graph_file.as_bytes(graph, without=states, note=_digest_of_constants(tensors, states))
        graph = _filled(graph_file.read(path, content)[0], tensors)

        def write() -> None:
            atomic.make_folder(folder)
            atomic.write(path, lambda file: file.write(content))

        try:
            naming(path, write)
        except Error as error:
            log.warning("from_torch: cache: %s", error)
    return graph


def _found(path: str, tensors: Mapping[str, torch.Tensor]) -> Graph | None:
    """Returns the graph in the file; None if it is missing or damaged, or if constants had other values."""
    with suppress(Error):
        graph, note = graph_file.read(path)
        if note == _digest_of_constants(tensors, _states(graph, tensors)):
            return _filled(graph, tensors)
    return None


def _filled(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> Graph:
    return _lockstep._with_values(graph, {name: tensors[name].detach().cpu() for name in _states(graph, tensors)})


def _states(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    return [state.name for state in graph.states if state.name in tensors]


def _digest_of_constants(tensors: Mapping[str, torch.Tensor], states: Iterable[str]) -> str:
    """A digest of the module's tensors whose values are in the graph, because they are not states."""
    digest, known = hashlib.sha256(), set(states)
    for name in sorted(tensors.keys() - known):
        digest.update(repr((name, _content(tensors[name], name))).encode())
    return digest.hexdigest()


def _content(tensor: torch.Tensor, place: str) -> tuple[str, tuple[int, ...], str]:
    import torch

    try:
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(values.data).hexdigest()
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise _unknown(place, tensor) from error


def _unknown(place: str, value: Any) -> Error:
    return Error(
        f"from_torch: cache: {place} is of type {type(value).__module__}.{type(value).__qualname__}, whose changes a cache cannot "
        "detect; leave out cache"
    )


def _key(module: torch.nn.Module, inputs: Mapping[str, Any], options: Any) -> str:
    """A digest of everything on which the graph depends, except the values of the module's parameters and buffers."""
    import torch

    description = _Description(module)
    description.say(
        VERSION, sys.version, torch.__version__, str(torch.get_default_dtype()), *_versions(), _of_package()
    )
    description.say(torch.is_autocast_enabled("cpu"))
    description.add(options, "an option")
    description.add(inputs, "an example input", by_type=True)
    description.add(module, type(module).__name__)
    return description.digest()


@functools.cache
def _versions() -> tuple[str, ...]:
    """The versions of the packages with which torch exports, and of libraries whose code is not described."""
    found = []
    for package in ("numpy", "onnx", "onnx-ir", "onnxscript"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return tuple(found)


@functools.cache
def _of_package() -> str:
    """A digest of the files of this package that make graphs. They change more often than its version."""
    package, digest = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted([*package.glob("_torch/*.py"), *package.glob("_lockstep*.so")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Description:
    """A digest of values, of their parts, and of the code of their classes and functions.

    Functions and classes of Python's standard library, torch and NumPy are described by their names, because the key
    contains the versions.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._hash = hashlib.sha256()
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # keeps objects alive, so that ids stay unique
        self._queued: set[int] = set()
        self._code: list[Any] = []  # functions and classes, which are described last
        self._by_type = {id(each) for each in [*module.parameters(), *module.buffers()]}
        self._storages: dict[int, int] = {}

    def digest(self) -> str:
        while self._code:
            value = self._code.pop(0)
            self.say("code", value.__module__, value.__qualname__)
            self._add_class(value) if isinstance(value, type) else self._add_function(value)
        return self._hash.hexdigest()

    def say(self, *words: Any) -> None:
        self._hash.update(repr(words).encode(errors="backslashreplace"))

    def add(self, value: Any, place: str, by_type: bool = False) -> None:
        """Adds a value. Raises an Error, which names the place, if the content of the value cannot be determined."""
        import torch

        if isinstance(value, _PLAIN):
            self.say(repr(value))
            if type(value).__module__ in ("builtins", "numpy"):
                return self.say(type(value).__name__)
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, enum.Enum)):
            return self.say(type(value).__qualname__, str(value))
        if isinstance(value, getattr(sys.modules.get("sympy"), "Basic", ())):  # a bound of a torch.export.Dim
            return self.say(repr(value))
        if id(value) in self._numbers:
            return self.say("again", self._numbers[id(value)])
        if not isinstance(value, tuple):  # equal tuples may or may not be one object
            self._numbers[id(value)] = len(self._numbers)
            self._kept.append(value)
        self.say(type(value).__module__, type(value).__qualname__)
        if isinstance(value, torch.Tensor):
            return self._add_tensor(value, place, by_type or id(value) in self._by_type)
        if isinstance(value, (type, types.FunctionType)):
            return self._add_code(value)
        if isinstance(value, types.ModuleType):
            return self.say(value.__name__)
        if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            owner = getattr(value, "__self__", None)
            self.say(value.__qualname__)
            return None if owner is None else self.add(owner, place)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return self.say(str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).data).hexdigest())
        return self._add_parts(value, place, by_type)

    def _add_parts(self, value: Any, place: str, by_type: bool) -> None:
        known = True
        if isinstance(value, Mapping):
            for i, (key, each) in enumerate(value.items()):
                self.add(key, f"key {i} of {place}", by_type)
                self.add(each, f"{place}[{key!r}]", by_type)
        elif isinstance(value, (list, tuple)):
            for i, each in enumerate(value):
                self.add(each, f"{place}[{i}]", by_type)
        elif isinstance(value, (set, frozenset)):
            for each in sorted(value, key=repr):
                self.add(each, f"an element of {place}", by_type)
        elif isinstance(value, types.MethodType):
            self.add(value.__func__, place)
            self.add(value.__self__, place)
        elif isinstance(value, functools.partial):
            self.add([value.func, value.args, value.keywords], place)
        else:
            known = False
        attributes = getattr(value, "__dict__", None)
        if attributes is None:
            if not known:
                raise _unknown(place, value)
            return
        self._add_code(type(value))
        for name in sorted(attributes):
            self.say(name)
            is_numbered = "_hooks" in name and isinstance(
                attributes[name], Mapping
            )  # the keys count the hooks that were ever registered
            each = list(attributes[name].values()) if is_numbered else attributes[name]
            self.add(each, f"{place}.{name}", by_type)

    def _add_tensor(self, tensor: torch.Tensor, place: str, by_type: bool) -> None:
        try:
            self.say(str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad)
            if by_type:
                storage = tensor.untyped_storage().data_ptr()
                number = self._storages.setdefault(storage, len(self._storages))
                self.say(number, tensor.storage_offset(), tensor.stride())
        except (RuntimeError, NotImplementedError) as error:  # such as an uninitialized tensor
            raise _unknown(place, tensor) from error
        if not by_type:
            self.say(_content(tensor, place))
        self.add(getattr(tensor, "_backward_hooks", None), f"the hooks of {place}")
        self.add(getattr(tensor, "_post_accumulate_grad_hooks", None), f"the hooks of {place}")

    def _add_code(self, value: Any) -> None:
        """Adds a function or a class."""
        self.say(value.__module__, value.__qualname__)
        if id(value) not in self._queued and not _is_of_library(value):
            self._queued.add(id(value))
            self._kept.append(value)
            self._code.append(value)

    def _add_class(self, kind: type) -> None:
        self.add(kind.__bases__, f"a base of {kind.__qualname__}")
        for name in sorted(vars(kind).keys() - _OF_A_CLASS):
            value = vars(kind)[name]
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            elif isinstance(value, property):
                value = (value.fget, value.fset)
            self._add_constant(name, value)

    def _add_function(self, function: types.FunctionType) -> None:
        kept = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
        for value in (function.__defaults__, function.__kwdefaults__, *kept):
            with suppress(Error):  # the content of some objects cannot be determined
                self.add(value, function.__qualname__)
        names = self._add_code_object(function.__code__)
        spaces = [function.__globals__]
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, types.ModuleType) and not _is_library(value.__name__):
                spaces.append(vars(value))
        for space in spaces:
            for name in sorted(names & space.keys()):
                self._add_constant(name, space[name])

    def _add_constant(self, name: str, value: Any) -> None:
        """Adds a global or an attribute of a class, if it is of a kind that does not change while a program runs."""
        if _is_constant(value):
            self.say(name)
            self.add(value, name)

    def _add_code_object(self, code: types.CodeType) -> set[str]:
        """Adds code. Returns the names that it uses, including globals."""
        names = set(code.co_names)
        self.say(code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags)
        self.say(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names |= self._add_code_object(constant)
            else:
                self.say(sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant))
        return names


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, (*_PLAIN, type, types.FunctionType))


def _is_of_library(value: Any) -> bool:
    if isinstance(value, types.FunctionType):  # its __module__ may be that of a wrapped function
        return _is_library(value.__globals__.get("__name__", ""))
    return _is_library(value.__module__ or "")


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
