"""Every op of docs/ops.md is a function of lockstep.graph: graphs of the golden files and training steps are built again
by these functions, and have the same text.
"""

from __future__ import annotations

import inspect
import keyword
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import ROOT
from lockstep import _lockstep
from test_errors import CROSS_ENTROPY, mlp

OPS = {each["name"]: each for each in _lockstep._ops()}
NAME = re.compile(r'%(?:"[^"]*"|[\w./]+)')
NODE = re.compile(r"^  (?P<results>%.*?) = (?P<op>\w+) ?(?P<operands>[^{:]*?) ?(?:\{(?P<attributes>.*)\} )?: ")
ATTRIBUTE = re.compile(r'(\w+)=(dense<[^>]*>|\[[^\]]*\]|"[^"]*"|[^,]+)')

# The nodes of ops that no golden graph and no training step has, by the names of their operands.
INPUTS = {"x": (1, 2, 6), "y": (1, 2, 3), "f": (2, 2, 3), "w": (2, 6), "l": (1, 2)}  # f32
WINDOW = "padding_high=[1], padding_low=[0], stride=[2], window=[3]"
MORE = [
    *(f"{op} %x" for op in ("log", "log1p", "sigmoid", "softsign", "sin", "cos", "tan", "asin", "acos", "atan")),
    *(f"{op} %x" for op in ("sinh", "cosh", "asinh", "acosh", "atanh")),
    *(f"{op} %x, %x" for op in ("fmod", "remainder")),
    "shift_left %n, %n",
    "parts %p {axis=data, shape=[2]}",
    "reverse %x {dims=[1]}",
    "argmin %x {dim=1}",
    "top_k %x {dim=2, k=2, largest=false}",
    "cumulative_sum %x {dim=0, exclusive=true}",
    "cumulative_prod %x {dim=0}",
    "convolution_grad_input %f, %y {dilation=[1], input_shape=[1, 2, 8], padding_high=[0], padding_low=[0], stride=[2]}",
    "convolution_grad_filter %x, %y {dilation=[1], filter_shape=[2, 2, 2], padding_high=[0], padding_low=[0], stride=[2]}",
    "attention_mask_grad %x, %x, %x, %l, %x, %l, %m {scale=0.5}",
    f"max_pool_grad %x, %y {{dilation=[1], {WINDOW}}}",
    "overlap_add %y {dilation=[1], dim=1, size=[4], stride=[1]}",
    "push %x {axis=data, key=w}",
    "exchange_weights %x {by=some, state=w}",
    "as_local %x {axis=data}",
    "as_replicated %i {axis=data}",
    "axis_index {axis=data}",
    "collective_permute %i {axis=data, sources=[0, 1], targets=[1, 0]}",
    f"avg_pool %x {{include_padding=true, {WINDOW}}}",
    f"avg_pool_grad %y {{include_padding=false, input_shape=[1, 2, 6], {WINDOW}}}",
    "sgd %x, %x {learning_rate=%rate}",
    "muon %w, %w, %w {adjust_lr_fn=match_rms_adamw, learning_rate=0.5}",
    "sgd %x, %x {learning_rate=0.5, weight_decay=%rate}",
]

# Optimizers that select the other ops; the variables of the model are matrices and vectors.
OPTIMIZERS = [
    *(ls.optim.RMSprop(0.1, momentum=m, centered=c) for m in (0.0, 0.9) for c in (False, True)),
    ls.optim.Adagrad(0.1), ls.optim.Adamax(0.1), ls.optim.RAdam(0.1), ls.optim.Adadelta(0.1), ls.optim.Rprop(0.1),
    ls.optim.NAdam(0.1), ls.optim.LAMB(0.1), ls.optim.Adafactor(0.1),
]  # fmt: skip


def array_of(text: str) -> np.ndarray:
    """The elements of "dense<f32[2]: 1.0, 2.0>"; one element stands for all."""
    match = re.fullmatch(r"dense<(\w+)\[([\d,]*)\]: ?(.*)>", text)
    assert match, text
    shape = tuple(map(int, filter(None, match[2].split(","))))
    elements = [each.strip() for each in match[3].split(",") if each.strip()]
    if match[1] == "bool":
        flat: Any = np.array([each == "true" for each in elements])
    else:
        kind = {"f": "float", "i": "int", "u": "uint"}[match[1][0]] + match[1][1:]
        flat = np.array(elements, "float64" if kind.startswith("float") else kind).astype(kind)
    return np.broadcast_to(flat[0], shape) if len(flat) == 1 else flat.reshape(shape)


def attribute_of(kind: str, text: str, values: dict[str, Any]) -> Any:
    if text.startswith("%"):
        return values[text]
    if kind == "ints":
        return [int(each) for each in text[1:-1].split(",") if each.strip()]
    if kind == "float" and "/" in text:
        return float(text.split("/")[0]) / float(text.split("/")[1])
    convert = {"bool": lambda: text == "true", "int": lambda: int(text), "float": lambda: float(text)}
    convert["tensor"] = lambda: array_of(text)
    return convert[kind]() if kind in convert else text.strip('"')


def insert(g: ls.graph.Builder, line: str, values: dict[str, Any]) -> str:
    """Calls the function of the line's op with its operands and attributes. Returns the op."""
    match = NODE.match(line)
    assert match, line
    op = match["op"]
    kinds = {each["name"]: each["type"] for each in OPS[op]["attributes"]}
    written = ATTRIBUTE.findall(match["attributes"] or "")
    attributes = {key: attribute_of(kinds[key], text.strip(), values) for key, text in written}
    operands = [values[name] for name in NAME.findall(match["operands"])] if OPS[op]["operands"] else [g]
    results = getattr(ls.graph, op + "_" * keyword.iskeyword(op))(*operands, **attributes)
    names = NAME.findall(match["results"])
    values.update(zip(names, results if isinstance(results, tuple) else (results,), strict=True))
    return op


def rebuilt(text: str) -> tuple[str, set[str]]:
    """The text of the graph, built by the functions of lockstep.graph, and its ops."""
    parsed, (head, *lines) = ls.parse(text), re.sub(r"^mesh .*\n", "", text).splitlines()
    mesh = {axis: int(size) for axis, size in re.findall(r"(\w+)=(\d+)", text[: text.index("graph")])}
    g, values, ops = ls.graph.Builder("g", mesh=mesh), {}, set()
    known = {each.name: each for each in (*parsed.inputs, *parsed.states)}
    states = {each.name for each in parsed.states}
    for written in NAME.findall(head.partition(" -> ")[0]):
        name = written.strip('%"')
        if name in parsed.settings:
            values[written] = g.setting(name, parsed.settings[name])
        elif name in states:
            values[written] = g.state(name, known[name].shape, known[name].dtype)
        else:
            splits = {axis: int(place[6:-1]) for axis, place in known[name].placements.items()}
            values[written] = g.input(name, known[name].dtype, known[name].shape, split=splits)
    for line in lines[:-2]:
        ops.add(insert(g, line, values))
    results = re.findall(r'(%?)("[^"]*"|[\w./]+): \w+\[', head.partition(" -> ")[2])
    for (state, name), value in zip(results, NAME.findall(lines[-2]), strict=True):
        (g.next_state if state else g.result)(name.strip('"'), values[value])
    return str(g), ops


def normal(text: str) -> str:
    """The text with numbered values, and without sources, placements, ranges of settings, and the name of the
    graph, which a builder sets in other ways. Of a graph with a mesh, the collectives alone."""
    text = re.sub(r"graph @[^(]*\(", "graph @(", re.sub(r' @"[^"]*"', "", text))
    text = re.sub(r" (?:(?:split|partial|at)\([^()]*\)|local\b)", "", text)
    text = re.sub(r" in [\[(][^=]*=", " =", text)
    if text.startswith("mesh"):  # in which a builder computes slices of replicated values itself
        nodes = [NODE.match(line) for line in text.splitlines()]
        text = "\n".join(NAME.sub("%", node[0]) for node in nodes if node and OPS[node["op"]]["is_collective"])
    names: dict[str, str] = {}
    return NAME.sub(lambda match: names.setdefault(match[0], f"%{len(names)}"), text)


def golden() -> Iterator[str]:
    """The graphs of the golden files that a builder can build: without bodies, bf16 constants, and parts of ranks."""
    for path in sorted((ROOT / "test/golden").glob("*.ir")):
        cases = [
            re.split("^// ==>$", case, flags=re.MULTILINE)
            for case in re.split("^// -----$", path.read_text(), flags=re.MULTILINE)
        ]
        for case in cases:
            for text in case if "error:" not in case[-1] else []:
                if "graph @" not in text:  # "unchanged"
                    continue
                graph = ls.parse(text)
                splits = [place for each in graph.inputs for place in each.placements.values()]
                is_plain = not re.search(r'=graph @|=mesh \{|dense<bf16|local graph|\\"', str(graph))
                is_plain = is_plain and not any(each.placements for each in graph.states)
                if is_plain and all(each.startswith("split") for each in splits):
                    yield str(graph)


def test_golden_graphs_and_training_steps_are_built_by_name() -> None:
    steps = [str(ls.train_step(mlp(), CROSS_ENTROPY, optimizer)) for optimizer in OPTIMIZERS]
    covered, count = set[str](), 0
    for written in [*golden(), *steps]:
        text, ops = rebuilt(written)
        assert normal(text) == normal(written)
        count += 1
        covered |= ops
    assert count > 300
    rest = {line.split()[0] for line in MORE} | {"fusion", "own_part", "pull", "scan"}
    assert covered | rest == set(OPS), set(OPS) - covered - rest


@pytest.mark.parametrize("line", MORE)
def test_an_op_by_name(line: str) -> None:
    g = ls.graph.Builder("row", mesh={"data": 2} if "{axis" in line and "push" not in line else None)
    values: dict[str, Any] = {f"%{name}": g.input(name, "f32", shape) for name, shape in INPUTS.items()}
    values |= {"%m": g.input("m", "f32", (1, 2, 2)), "%n": g.input("n", "u32", (3,)), "%rate": g.setting("rate", 0.1)}
    if "%i " in line or "%p " in line:  # a value that differs between ranks, and a sum of which each has a term
        made = ls.graph.axis_index(g, axis="data") if "%i " in line else g.input("s", "f32", (2,), split=0).sum()
        line = re.sub("%[ip] ", f"%{made.name} ", line)
        values[f"%{made.name}"] = made
    results = ", ".join(f"%r{i}" for i in range(len(OPS[line.split()[0]]["results"])))
    insert(g, f"  {results} = {line} : ", values)
    assert f" = {line} : " in str(g)


def test_ops_with_a_graph_as_attribute() -> None:
    """The sum of the squares of a list, by a loop whose body is a graph."""
    body = ls.graph.Builder("body")
    total, x = body.input("total", "f32", ()), body.input("x", "f32", ())
    body.result("next", total + x * x)
    once = body.finish()
    g = ls.graph.Builder("sums")
    xs = g.input("xs", "f32", (4,))
    zero = g.constant(0.0, "f32")
    g.result("sum", ls.graph.scan(zero, xs, body=once, length=4, carried=1, scanned=1))
    g.result("once", ls.graph.fusion(zero, xs[3], body=once))
    (results,) = ls.interpret(g.finish(), [{"xs": np.float32([1, 2, 3, 4])}])
    assert results["sum"] == 30 and results["once"] == 16
    update = ls.graph.Builder("update")
    gradient, value = update.input("gradient", "f32", (3,)), update.state("value", (3,))
    update.next_state("value", value - gradient)
    g = ls.graph.Builder("worker")
    x, w = g.input("x", "f32", (3,)), g.state("w", (3,))
    pulled = ls.graph.pull(ls.graph.push(x, axis="data", key="w"), w, key="w", update=update.finish())
    assert pulled.shape == (3,) and "= pull %0, %w {key=w, update=graph @update(" in str(g)


def test_signatures_and_documentation() -> None:
    for name, definition in OPS.items():
        function = getattr(ls.graph, name + "_" * keyword.iskeyword(name))
        parameters = list(inspect.signature(function).parameters)
        assert parameters == [
            *(definition["operands"] or ["graph"]),
            *(each["name"] for each in definition["attributes"]),
        ]
        doc = "".join(function.__doc__.split())
        assert "".join(definition["doc"].split()) in doc
        assert all("".join(f"({key}){text}".split()) in doc for key, text in definition["constraints"]), name


def test_functions_are_made_at_their_first_use() -> None:
    lines = [
        "import pickle, sys, lockstep",
        "from lockstep.graph import _ops",
        "print('relu' in vars(lockstep.graph), 'relu' in vars(_ops), 'relu' in dir(lockstep.graph))",
        "print('numpy.random' in sys.modules)",
        "relu = lockstep.graph.relu",
        "print(relu is lockstep.graph.relu, pickle.loads(pickle.dumps(relu)) is relu, 'exp' in vars(_ops))",
        "from lockstep.graph import *",
        "print(exp is lockstep.graph.exp, hasattr(_ops, 'zebra'))",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*("False", "False", "True"), "False", *("True", "True", "False"), "True", "False"]
