"""Writes ONNX's own node tests (of the installed package `onnx`), and models of ours with what ONNX's reference
evaluator computes for them, into one file for onnx_node_test.

    python export_node_cases.py OUT [MODEL.onnx ...]

The file is a sequence of cases; each is a name, a model, inputs, outputs and two tolerances:
    bytes name, bytes ModelProto, list of bytes TensorProto, list of bytes TensorProto, f64 relative, f64 absolute
where bytes are a u32 length and the content, and a list is a u32 count and the elements; little-endian.
"""

import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

BATCH = 3


def write_bytes(out: BinaryIO, content: bytes) -> None:
    out.write(struct.pack("<I", len(content)))
    out.write(content)


def write_case(
    out: BinaryIO, name: str, model: onnx.ModelProto, inputs: list, outputs: list, rtol: float, atol: float
) -> None:
    write_bytes(out, name.encode())
    write_bytes(out, model.SerializeToString())
    for tensors in (inputs, outputs):
        out.write(struct.pack("<I", len(tensors)))
        for tensor in tensors:
            write_bytes(out, tensor.SerializeToString())
    out.write(struct.pack("<dd", rtol, atol))


def as_protos(values: list) -> list[onnx.TensorProto] | None:
    """The values as tensors, or None if one is no tensor (a sequence, an optional, strings)."""
    protos = []
    for value in values:
        if isinstance(value, onnx.TensorProto):
            protos.append(value)
        elif isinstance(value, (np.ndarray, np.generic)) and np.asarray(value).dtype.kind in "fiubV":
            protos.append(numpy_helper.from_array(np.asarray(value)))
        else:
            return None
    return protos


def node_cases() -> Iterator[tuple]:
    """Each case that has tensors only: (name, model, inputs, outputs, rtol, atol)."""
    for case in collect_testcases():
        for inputs, outputs in case.data_sets or []:
            inputs, outputs = as_protos(inputs), as_protos(outputs)
            if inputs is not None and outputs is not None and case.model.ByteSize() < 1 << 20:
                yield case.name, case.model, inputs, outputs, case.rtol, case.atol
            break


def model_case(path: Path) -> tuple:
    """A model with one input whose symbolic dimensions are BATCH."""
    model = onnx.load(path)
    shape = [dim.dim_value or BATCH for dim in model.graph.input[0].type.tensor_type.shape.dim]
    value = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    outputs = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: value})
    # Bind the dimensions, so that importing needs to know nothing of the model.
    for info in [*model.graph.input, *model.graph.output]:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = BATCH
    return "model_" + path.stem, model, as_protos([value]), as_protos(outputs), 1e-4, 1e-6


def main() -> None:
    warnings.simplefilter("ignore")  # overflows that some cases are about
    with open(sys.argv[1], "wb") as out:
        for path in sys.argv[2:]:
            write_case(out, *model_case(Path(path)))
        for case in node_cases():
            write_case(out, *case)


if __name__ == "__main__":
    main()
