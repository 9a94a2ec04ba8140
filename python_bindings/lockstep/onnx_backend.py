"""ONNX's backend interface: `prepare(model).run(inputs)`, for tools that work with any implementation of ONNX.

    import lockstep.onnx_backend as backend

    outputs = backend.prepare(onnx.load("model.onnx")).run([x])

Inputs may decide shapes, such as the shape of a Reshape or the k of a TopK. One program is compiled, and kept, for each
combination of input shapes and of the values of deciding inputs. It runs on the CPU in this process, as one rank. The
module needs the package `onnx`. To train, or to run on several ranks, use `lockstep.load_onnx`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from . import Error, Executable, compile, load_onnx

# The largest number of elements of an input that may decide shapes. No shape and no list of axes has so many numbers.
_MAX_DECIDING_ELEMENTS = 1024


class Prepared(BackendRep):
    """A model, and the programs that have been compiled for its inputs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        initializers = {tensor.name for tensor in model.graph.initializer}
        self._model = model
        self._inputs = [info.name for info in model.graph.input if info.name not in initializers]
        self._overridable = [info.name for info in model.graph.input if info.name in initializers]
        self._outputs = [info.name for info in model.graph.output]
        # By the types of all inputs: the inputs that decided shapes in any of the programs, and the programs by the
        # inputs' values.
        self._programs: dict[Any, tuple[list[str], dict[Any, Executable]]] = {}

    def run(self, inputs: Sequence[Any] | Mapping[str, Any], **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, in the order of the model, as a tuple whose elements have the outputs' names as well.

        Args:
          inputs: in the order of the model's inputs, with inputs that are initializers last; or by name.
        """
        if kwargs:
            raise Error(f"run: there is no option {next(iter(kwargs))!r}")
        values = self._by_name(inputs)
        program = self._program_for(values)
        taken = {info.name for info in program.graph.inputs}
        results = program(**{name: value for name, value in values.items() if name in taken})
        return namedtupledict("Outputs", self._outputs)(*[results[name] for name in self._outputs])

    def _by_name(self, inputs: Sequence[Any] | Mapping[str, Any]) -> dict[str, np.ndarray]:
        names = self._inputs + self._overridable
        if not isinstance(inputs, Mapping):
            if not len(self._inputs) <= len(inputs) <= len(names):
                raise Error(f"run: {len(inputs)} inputs, expected {len(self._inputs)}: {', '.join(self._inputs)}")
            inputs = dict(zip(names, inputs, strict=False))
        for name in inputs:
            if name not in names:
                raise Error(f"run: there is no input {name!r}; the model's inputs are {', '.join(names)}")
        for name in self._inputs:
            if name not in inputs:
                raise Error(f"run: input {name!r} is missing")
        for name, value in inputs.items():
            if value is None or isinstance(value, (list, tuple)):
                raise Error(
                    f"run: input {name!r} is a {type(value).__name__}, expected an array: there are no sequences here"
                )
        return {name: np.asarray(value) for name, value in inputs.items()}

    def _program_for(self, values: dict[str, np.ndarray]) -> Executable:
        types = tuple((name, value.dtype.str, value.shape) for name, value in values.items())
        fixed, programs = self._programs.setdefault(types, ([], {}))
        key = tuple(values[name].tobytes() for name in fixed)
        if key not in programs:
            graph = self._import(values)
            # Other values may choose another branch of the model, in which other inputs decide.
            if not set(graph.fixed_inputs) <= set(fixed):
                programs.clear()
                fixed[:] = sorted({*fixed, *graph.fixed_inputs})
                key = tuple(values[name].tobytes() for name in fixed)
            programs[key] = compile(graph)
        return programs[key]

    def _import(self, values: dict[str, np.ndarray]) -> Any:
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        kept = [tensor for tensor in model.graph.initializer if tensor.name not in values]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
        for info in model.graph.input:
            if info.name in values:
                element = info.type.tensor_type.elem_type
                info.CopyFrom(helper.make_tensor_value_info(info.name, element, values[info.name].shape))
        deciding = {name: value for name, value in values.items() if value.size <= _MAX_DECIDING_ELEMENTS}
        return load_onnx(model, split={}, values=deciding)


class LockstepBackend(Backend):
    """The class that `onnx.backend.test` and other tools call. The functions of this module are its methods."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Checks the model. It is compiled when `run` has the inputs."""
        if not cls.supports_device(device):
            raise Error(f"prepare: there is no device {device!r}; there is CPU")
        onnx.checker.check_model(model)
        return Prepared(model)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> Any:
        """Runs one node. Absent operands have no entry in `inputs`."""
        names = [name for name in node.input if name]
        arrays = [np.asarray(value) for value in inputs]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in zip(names, arrays, strict=True)
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        opset = helper.make_opsetid(node.domain, kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        model = helper.make_model(helper.make_graph([node], "node", infos, outputs), opset_imports=[opset])
        return Prepared(model).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == "CPU"


is_compatible = LockstepBackend.is_compatible
prepare = LockstepBackend.prepare
run_model = LockstepBackend.run_model
run_node = LockstepBackend.run_node
supports_device = LockstepBackend.supports_device
