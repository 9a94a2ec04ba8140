"""Writes test cases for onnx_node_test into one file: ONNX's own (of the installed package `onnx`), our models with the
results of ONNX's reference evaluator, and the models of subgraph_models.py. Writes the models that the import must
refuse, and a model for onnx_fuzz_test, into two other files.

    python export_node_cases.py CASES REFUSED FUZZED [MODEL.onnx ...]

The first two files are sequences of cases; the name of a case in REFUSED is the expected error message. If an input or
output of a case is a sequence or an optional, nodes are added to the model that build it from tensors or take it apart.
A case is a name, a model, inputs, outputs and two tolerances:
    bytes name, bytes ModelProto, list of bytes TensorProto, list of bytes TensorProto, f64 relative, f64 absolute
Here bytes are a u32 length and the content, and a list is a u32 count and the elements, all little-endian.
"""

import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import subgraph_models
from onnx import helper, numpy_helper, parser
from onnx.backend.test.case.model import collect_testcases as collect_model_testcases
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
    """The values as tensors, or None if one is not a numeric tensor (a sequence, an optional, strings)."""
    protos = []
    for value in values:
        if isinstance(value, onnx.TensorProto):
            protos.append(value)
        elif isinstance(value, (np.ndarray, np.generic)) and np.asarray(value).dtype.kind in "fiubV":
            protos.append(numpy_helper.from_array(np.asarray(value)))
        else:
            return None
    return protos


def tensor_of(value: Any) -> onnx.TensorProto | None:
    protos = as_protos([value])
    return protos[0] if protos else None


def element_type(info: onnx.TypeProto) -> int:
    while not info.HasField("tensor_type"):
        info = info.optional_type.elem_type if info.HasField("optional_type") else info.sequence_type.elem_type
    return info.tensor_type.elem_type


def add_input(model: onnx.ModelProto, info: onnx.ValueInfoProto, value: Any, tensors: list) -> list[onnx.NodeProto]:
    """Adds the input's elements to the model's inputs and to `tensors`. Returns the nodes that make `value` of them."""
    elements = value if isinstance(value, list) else [] if value is None else [value]
    names = [f"{info.name}/{i}" for i in range(len(elements))]
    for name, element in zip(names, elements, strict=True):
        tensors.append(tensor_of(element))
        model.graph.input.append(helper.make_tensor_value_info(name, tensors[-1].data_type, tensors[-1].dims))
    if value is None:
        return [helper.make_node("Optional", [], [info.name], type=info.type.optional_type.elem_type)]
    if not isinstance(value, list):
        return [helper.make_node("Optional", names, [info.name])]
    if not value:
        return [helper.make_node("SequenceEmpty", [], [info.name], dtype=element_type(info.type))]
    return [helper.make_node("SequenceConstruct", names, [info.name])]


def add_output(model: onnx.ModelProto, name: str, value: list, tensors: list) -> None:
    """Adds nodes that take the sequence `name` apart. Adds their outputs to the model's outputs and to `tensors`."""
    outputs = [("SequenceLength", [name], f"{name}/length", np.array(len(value)))]
    for i, element in enumerate(value):
        at = helper.make_node("Constant", [], [f"{name}/at/{i}"], value_int=i)
        model.graph.node.append(at)
        outputs.append(("SequenceAt", [name, at.output[0]], f"{name}/{i}", element))
    for op, inputs, output, expected in outputs:
        model.graph.node.append(helper.make_node(op, inputs, [output]))
        tensors.append(tensor_of(expected))
        model.graph.output.append(helper.make_tensor_value_info(output, tensors[-1].data_type, tensors[-1].dims))


def with_tensors_only(model: onnx.ModelProto, inputs: list, outputs: list) -> tuple[onnx.ModelProto, list, list]:
    """Returns the case with tensors only: nodes in the model build sequences and optionals and take them apart."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for field in (changed.graph.input, changed.graph.output, changed.graph.node):
        del field[:]
    tensors: tuple[list, list] = ([], [])
    for info, value in zip(model.graph.input, inputs, strict=False):
        if info.type.HasField("tensor_type"):
            tensors[0].append(tensor_of(value))
            # Uses the value's extents, as some dimensions are symbolic.
            shape = np.shape(value) if tensors[0][-1] is None else tensors[0][-1].dims
            element = info.type.tensor_type.elem_type
            changed.graph.input.append(helper.make_tensor_value_info(info.name, element, shape))
        else:
            changed.graph.node.extend(add_input(changed, info, value, tensors[0]))
    changed.graph.node.extend(model.graph.node)
    for info, value in zip(model.graph.output, outputs, strict=True):
        if isinstance(value, list):
            add_output(changed, info.name, value, tensors[1])
        else:
            changed.graph.output.append(info)
            tensors[1].append(tensor_of(value))
    return changed, *tensors


def node_cases() -> Iterator[tuple]:
    """Yields (name, model, inputs, outputs, rtol, atol) of each case whose values are, or are made of, numeric
    tensors."""
    for case in [*collect_testcases(), *collect_model_testcases()]:
        if case.model is None or case.model.ByteSize() >= 1 << 20:
            continue
        for inputs, outputs in case.data_sets or []:
            model, inputs, outputs = with_tensors_only(case.model, inputs, outputs)
            if None not in inputs and None not in outputs:
                yield case.name, model, inputs, outputs, case.rtol, case.atol
            break


def subgraph_case(name: str, text: str, compute: Callable[..., list]) -> tuple:
    model = parser.parse_model(text)
    random = np.random.default_rng(2)
    shapes = [[dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in model.graph.input]
    inputs = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    types = [helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type) for info in model.graph.output]
    outputs = [np.asarray(value, dtype) for value, dtype in zip(compute(*inputs), types, strict=True)]
    return name, model, as_protos(inputs), as_protos(outputs), 1e-5, 1e-6


def model_case(path: Path) -> tuple:
    """Returns a case for a model with one input, of floats or of tokens. BATCH replaces its symbolic dimensions."""
    model = onnx.load(path)
    of_input = model.graph.input[0].type.tensor_type
    shape = [dim.dim_value or BATCH for dim in of_input.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(of_input.elem_type)
    random = np.random.default_rng(1)
    value = random.normal(size=shape) if dtype == np.float32 else random.integers(0, 8, shape)
    value = value.astype(dtype)
    outputs = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: value})
    # Bind the dimensions, so that the import needs no options.
    for info in [*model.graph.input, *model.graph.output]:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = BATCH
    return "model_" + path.stem, model, as_protos([value]), as_protos(outputs), 1e-4, 1e-6


def main() -> None:
    warnings.simplefilter("ignore")  # some cases overflow on purpose
    cases, refused, fuzzed, *models = sys.argv[1:]
    with open(cases, "wb") as out:
        for path in models:
            write_case(out, *model_case(Path(path)))
        for name, (text, compute) in subgraph_models.MODELS.items():
            write_case(out, *subgraph_case(name, text, compute))
        for case in node_cases():
            write_case(out, *case)
    with open(refused, "wb") as out:
        for message, text in subgraph_models.REFUSED:
            write_case(out, message, parser.parse_model(text), [], [], 0, 0)
    Path(fuzzed).write_bytes(parser.parse_model(subgraph_models.FUZZED).SerializeToString())


if __name__ == "__main__":
    main()
