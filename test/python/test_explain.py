"""Graph.explain(), Executable.explain() and Graph.save_html(): compared with numbers counted by hand, with the programs
that ranks run, and with the graphs that LOCKSTEP_DUMP writes."""

from __future__ import annotations

import html
import importlib
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import lockstep as ls
from cases import MLP_SPLIT, ROOT
from lockstep._graph.explain import Explanation
from lockstep.forecast import Link, Machine
from ranks import run_in_threads
from test_buckets import COSTS, GRADIENTS, late, report
from test_errors import raises

# Parameters of LeNet's layers, by hand.
LENET = {"conv1": 20 * 25 + 20, "conv2": 50 * 20 * 25 + 50, "fc1": 500 * 800 + 500, "fc2": 10 * 500 + 10}
ALL = sum(LENET.values())
COLLECTIVES = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute"}


SGD = ls.optim.SGD(0.05, momentum=0.9)


def lenet(optimizer: ls.optim.Optimizer = SGD) -> ls.Graph:
    model = ls.load_onnx(ROOT / "examples/mnist/lenet.onnx", dims={"batch": 128})
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), optimizer)


def mlp(**options: Any) -> ls.Graph:
    model = ls.load_onnx(ROOT / "test/models/mlp.onnx", dims={"batch": 24})
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam(0.01), **options)


def bytes_of(line: str) -> list[int]:
    """The bytes of each tensor in a line of Executable.collectives."""
    return [int(size) for size in re.findall(r"@\d+\+(\d+)", line)]


def test_lenet_on_four_ranks_by_hand() -> None:
    explained = lenet().explain(4)
    assert explained.mesh == {"data": 4}
    assert explained.bytes == 4 * ALL + 4, "each gradient once, and the loss"
    for layer in explained.layers:
        if layer.name in LENET:
            assert (layer.parameters, layer.bytes) == (LENET[layer.name], 4 * LENET[layer.name])
            assert {moved.axis for moved, _ in layer.communicated} == {"data"}
            assert {moved.op for moved, _ in layer.communicated} == {"all_reduce"}
            names = sorted(tensor.name for _, tensor in layer.communicated)
            assert names == [f"grad/{layer.name}.bias", f"grad/{layer.name}.weight"]
    others = sum(layer.bytes for layer in explained.layers if layer.name not in LENET)
    assert others == 4, "nothing else but the loss"
    halved = lenet().explain(4, wire="bf16")
    assert halved.bytes == 2 * ALL + 4
    assert {each.dtype for each in halved.communications} == {"bf16", "f32"}


def test_what_is_sent_is_that_of_the_route() -> None:
    # Between two hosts each rank sends half of its values to be added, and half of the sums.
    assert lenet().explain(2).sent == 4 * ALL + 4
    assert lenet().explain(1).communications == ()
    explained = lenet().explain(4)
    for each in explained.communications:
        # Each rank adds a quarter of the values; or, if they are few, gets all and adds them itself.
        assert each.sent in (2 * each.bytes * 3 // 4, each.bytes * 3)
    assert "estimate" in explained.sends and "10 Gb/s" in explained.sends
    slow = lenet().explain(4, machine=Machine(between=Link(1e-6, 1e6)))
    assert all(each.sent == 2 * each.bytes * 3 // 4 for each in slow.communications if each.bytes % 16 == 0)
    assert "1e+06 bytes a second" in slow.sends


PROGRAMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gradients": (lenet, {}),
    "sharded": (mlp, {"shard_optimizer": True}),
    "bf16": (mlp, {"wire": "bf16"}),
    "int8": (lenet, {"wire": "int8"}),
    "factors": (mlp, {"factors": 1.0}),
    "tensors": (mlp, {"mesh": {"data": 2, "model": 2}, "split": MLP_SPLIT}),
    "stages": (lambda: mlp(accumulate=3), {"mesh": {"data": 2, "stage": 2}}),
    "virtual": (mlp, {"virtual_ranks": 8}),
    "clipped": (lambda: mlp(clip=ls.clip.global_norm(1.0)), {"bucket_bytes": 100}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_what_ranks_run(name: str) -> None:
    make, options = PROGRAMS[name]
    step = make()

    def compiled(world: ls.Communicator) -> tuple[list[str], list[str], str, Explanation]:
        exe = ls.compile(step, world=world, threads=1, **options)
        return exe.collectives, exe.steps.splitlines()[1:], str(exe.graph), exe.explain()

    for rank, (collectives, steps, program, own) in enumerate(run_in_threads(4, compiled)):
        explained = step.explain(4, rank=rank, **options)
        assert explained.communications and len(explained.steps) == len(steps)
        assert explained.communications == own.communications
        assert explained.passes[-1].text_after == program
        of_ranks = [bytes_of(line) for line in collectives if bytes_of(line)]
        sent = [each for each in explained.communications if all(tensor.ready is not None for tensor in each.tensors)]
        if "stages" not in name:  # whose ranks list the collectives of all ranks
            assert of_ranks == [[tensor.bytes for tensor in each.tensors] for each in sent]
            assert explained.passes[-1].after.bytes == explained.bytes
        for each in explained.communications:
            assert ".start" in steps[each.started] and ".wait" in steps[each.needed]
            for tensor in each.tensors:
                if tensor.ready is not None and tensor.ready >= 0:
                    assert tensor.ready < each.started < each.needed
                    assert " writes " in steps[tensor.ready]


def test_positions_are_those_of_the_steps() -> None:
    step = lenet()
    steps = ls.compile(step, threads=1, replicated=True).steps  # of one rank: only to see that it is the same form
    explained = step.explain(4)
    assert "all_reduce" not in steps
    bucket = next(each for each in explained.communications if "grad/fc1.weight" in each.label)
    ready = {tensor.name: tensor.ready for tensor in bucket.tensors}
    # Gradients are ready in the order of the backward half, and the bucket starts after the last one.
    assert ready["grad/fc1.weight"] < ready["grad/conv2.weight"] < ready["grad/conv1.weight"] == bucket.ready
    assert bucket.ready < bucket.started < bucket.needed
    assert "sgd" in explained.steps[bucket.needed + 1] or "fusion" in explained.steps[bucket.needed + 1]
    assert "onnx:/conv1/Conv" in explained.steps[ready["grad/conv1.weight"]]


def test_a_result_of_a_collective_is_ready_after_its_wait() -> None:
    # The second collective reads the memory in which the first one leaves its result.
    step = ls.parse("""mesh {data=2}
graph @g(%x: f32[8,4] split(0)) -> (y: f32[4]) {
  %1 = reduce_sum %x {dims=[0]} : f32[4] partial(sum)
  %2 = reduce_scatter %1 {axis=data, dim=0, kind=sum} : f32[4] split(0)
  %3 = all_gather %2 {axis=data, dim=0} : f32[4]
  return %3
}""")
    first, second = step.explain(2, optimize=False).communications
    assert (first.op, second.op) == ("reduce_scatter", "all_gather")
    assert first.ready == 0 and second.ready == first.needed == 2
    assert (first.bytes, second.bytes) == (16, 8), "a rank gathers its half"


def test_times_are_sums_of_the_estimates_or_of_the_measured_steps() -> None:
    machine = Machine(operations=1e9, memory=1e30)
    explained = lenet().explain(4, machine=machine)
    products = 128 // 4 * 2 * 500 * 800 / 1e9  # of fc1, on a rank
    seconds = [
        s for s, text in zip(explained.seconds, explained.steps, strict=True) if "matmul" in text and "fc1" in text
    ]
    assert seconds == pytest.approx([products] * 3)
    for each in explained.communications:
        assert each.needed_at == pytest.approx(sum(explained.seconds[: each.needed]))
        for tensor in each.tensors:
            assert tensor.ready_at == pytest.approx(sum(explained.seconds[: tensor.ready + 1]))
    assert explained.times.startswith("times are estimates: each kernel by 1e+09 operations")

    def measured(world: ls.Communicator) -> tuple[Explanation, list[Any]]:
        exe = ls.compile(mlp(), world=world, threads=1)
        assert exe.explain().times.startswith("times are estimates")
        for _ in range(3):
            exe(x=np.ones((12, 12), np.float32), label=np.zeros(12, np.int64))
        return exe.explain(), exe.report().gradients

    for own, gradients in run_in_threads(2, measured):
        assert own.times == "times are measured: the means of 3 calls on this rank"
        tensors = [(each, tensor) for each in own.communications for tensor in each.tensors]
        assert [tensor.name for _, tensor in tensors] == [gradient.name for gradient in gradients]
        for (each, tensor), gradient in zip(tensors, gradients, strict=True):
            assert (tensor.ready_at, each.needed_at) == pytest.approx((gradient.ready, gradient.needed))


def test_buckets_from_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ls._lockstep, "_measure_costs", lambda world, mesh: [COSTS for _ in mesh])
    late_report = report(late(GRADIENTS[-1:]))

    def body(world: ls.Communicator) -> tuple[str, list[str], Explanation]:
        exe = ls.compile(mlp(), world=world, threads=1, buckets=late_report)
        return str(exe.strategy), exe.collectives, exe.explain()

    for strategy, collectives, own in run_in_threads(2, body):
        assert own.strategy == strategy and "buckets={" in strategy
        assert [[tensor.name for tensor in each.tensors] for each in own.communications][1] == GRADIENTS[-1:]
        assert [sum(bytes_of(line)) for line in collectives] == [each.bytes for each in own.communications]
        assert mlp().explain(2, strategy=strategy).communications == own.communications
    with raises("explain: buckets cannot be a report, because ranks must measure with it"):
        mlp().explain(2, buckets=late_report)


def counted(text: str) -> tuple[int, int]:
    """The nodes of a graph's text, and the collectives among them. Nodes of bodies are further to the right."""
    ops = re.findall(r"^  %.* = (\w+)[ \n]", re.sub(r" = (\w+) .*", r" = \1 ", text), re.MULTILINE)
    return len(ops), sum(op in COLLECTIVES for op in ops)


def test_passes_are_those_of_the_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = mlp(clip=ls.clip.global_norm(1.0))
    explained = step.explain(2)
    monkeypatch.setenv("LOCKSTEP_DUMP", str(tmp_path))
    run_in_threads(2, lambda world: ls.compile(step, world=world, threads=1).name)
    files = sorted((tmp_path / "mlp.rank0").glob("*.ir"))
    assert [change.name for change in explained.passes] == [file.name[4:-3] for file in files]
    before = str(step)
    for change, file in zip(explained.passes, files, strict=True):
        text = file.read_text().split("\n", 1)[1]
        assert (change.text_before, change.text_after) == (before, text)
        assert (change.before.nodes, change.before.collectives) == counted(before)
        assert (change.after.nodes, change.after.collectives) == counted(text)
        before = text
    distribute = next(change for change in explained.passes if change.name == "distribute")
    assert distribute.before.bytes == 0 and distribute.before.collectives == 0
    assert distribute.after.bytes == sum(4 * int(np.prod(state.shape)) for state in mlp_parameters(step)) + 4
    assert (
        distribute.diff().startswith("--- \n+++ \n@@") and "\n+  %grad/fc1.weight.1 = all_reduce" in distribute.diff()
    )


def mlp_parameters(step: ls.Graph) -> list[ls.ValueInfo]:
    return [state for state in step.states if state.name in step.trained]


def test_communication_belongs_to_the_layers_of_its_values() -> None:
    step = mlp()
    layers = {"fc1": "node_linear", "fc2": "node_linear_1", "fc3": "node_linear_2"}
    for options in ({}, {"wire": "bf16"}, {"shard_optimizer": True}, {"bucket_bytes": 1}):
        explained = step.explain(4, **options)
        for each in explained.communications:
            for tensor in each.tensors:
                name = tensor.name.removeprefix("grad/").partition(".")[0]
                assert tensor.layer == layers.get(name, "loss"), (options, tensor)


def test_a_distributed_program_is_explained_as_it_is() -> None:
    step = mlp()
    placed = ls.distribute(step, {"data": 4})
    assert placed.explain(4).communications == step.explain(4).communications
    assert not any(change.name == "distribute" for change in placed.explain(4).passes)
    with raises("mesh"):
        placed.explain(2)


def test_pushes_and_pulls() -> None:
    explained = lenet().explain(2, strategy="parameter_server")
    by_op = {op: [each for each in explained.communications if each.op == op] for op in ("push", "pull", "all_reduce")}
    assert sum(each.bytes for each in by_op["push"]) == sum(each.bytes for each in by_op["pull"]) == 4 * ALL
    assert len(by_op["push"]) == len(by_op["pull"]) == 8
    assert sum(each.sent for each in by_op["push"]) == 4 * ALL and not any(each.sent for each in by_op["pull"])
    for push, pull in zip(by_op["push"], sorted(by_op["pull"], key=lambda each: each.started), strict=True):
        assert push.axis == pull.axis == "servers" and push.ready is not None and push.ready < push.started
        assert pull.ready is None and pull.started < pull.needed
    layers = {layer.name: layer.bytes for layer in explained.layers}
    assert {name: layers[name] for name in LENET} == {name: 2 * 4 * count for name, count in LENET.items()}


def test_the_text() -> None:
    text = str(lenet().explain(4))
    assert "@lenet, rank 0 of the mesh {data=4}: " in text and f"communications of {4 * ALL + 4:,} bytes" in text
    assert re.search(
        r"\n  fc1 +400,500 +\S+ +\S+ +1,602,000\n    grad/fc1.bias  2,000 bytes  all_reduce sum f32 along", text
    )
    assert re.search(r"\n  distribute +\d+ +\d+ +0 +9 +0 +1,724,324\n", text)
    assert text == str(lenet().explain(mesh={"data": 4}))
    assert "sent" in text and "times are estimates" in text
    assert repr(lenet().explain(4)).startswith("<Explanation of @lenet, rank 0 of the mesh {data=4}: ")


# --- Pages ------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Reads a page: checks that tags are balanced, and collects what it refers to and the text of its elements."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(path.read_text())
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def saved(step: ls.Graph, path: Path, *arguments: Any, **options: Any) -> Page:
    step.save_html(path, *arguments, **options)
    return Page(path)


def test_a_page(tmp_path: Path) -> None:
    page = saved(lenet(), tmp_path / "step.html", 4)
    assert not page.named("script") and not page.named("link") and not page.named("img") and not page.named("iframe")
    references = [attributes.get("src") or attributes.get("href") for _, attributes in page.tags]
    assert not any(references), "it needs no other file"
    for expected in ("grad/fc1.weight", "bucket 1", "distribute", "1,724,324", "+  %grad/fc1.bias.1 = all_reduce"):
        assert expected in page.text
    explained = lenet().explain(4)
    circles = [each for tag, each in page.tags if tag == "circle"]
    assert len(circles) == len(
        {(each.label, tensor.ready) for each in explained.communications for tensor in each.tensors}
    )
    assert not any(attributes.get("class") == "differs" for attributes in page.named("tr"))
    lenet().save_html(tmp_path / "again.html", mesh={"data": 4})
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "step.html").read_bytes()
    explained.save_html(tmp_path / "same.html")
    assert (tmp_path / "same.html").read_bytes() == (tmp_path / "step.html").read_bytes()


def marked(page: Path) -> set[str]:
    """The names of the rows that are marked."""
    rows = re.findall(r'<tr class="differs"><td class="name">(.*?)</td>', page.read_text())
    return {html.unescape(name) for name in rows}


def test_two_steps_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "both.html"
    page = saved(lenet(), path, 4, other=lenet().explain(4, wire="bf16"))
    assert {"conv1", "conv2", "fc1", "fc2", "bucket 1"} <= marked(path)
    assert not {"Flatten", "MaxPool", "distribute", "bucket 0"} & marked(path) - {"bucket 0"}
    assert "all_reduce sum bf16 along data" in page.text and "all_reduce sum f32 along data" in page.text
    saved(lenet(), path, 4, other=lenet())
    assert marked(path) == set() and "no difference" in path.read_text()
    saved(lenet(), path, mesh={"data": 4}, other=lenet().explain(mesh={"data": 2}))
    assert "distribute" not in marked(path), "the same collectives are inserted"
    assert len({str(lenet().explain(n)) for n in (1, 2, 4)}) == 3
    other = saved(lenet(), path, 4, other=lenet(ls.optim.Adam(0.01)))
    assert "optimizer" in marked(path) and "adam" in other.text


def test_names_are_escaped(tmp_path: Path) -> None:
    bad = "<script>alert('&amp;')</script>"
    step = ls.parse(
        "graph @g(%x: f32[4,2] split(0), state %w: f32[2,2]) -> (y: f32[4,2] split(0), s: f32[]) {\n"
        f'  %1 = matmul %x, %w : f32[4,2] split(0) @"onnx:/{bad}/MatMul"\n'
        f'  %2 = reduce_sum %1 {{dims=[0, 1]}} : f32[] @"onnx:/{bad}/Sum"\n  return %1, %2\n}}\n'
    )
    page = saved(step, tmp_path / "page.html", 2, other=step)
    assert not page.named("script") and bad.rpartition("/")[0].rpartition("/")[0] in page.text
    shown = ElementTree.fromstring(step.explain(2)._repr_html_())
    assert "<script>" in "".join(shown.itertext())


def test_a_notebook_shows_it() -> None:
    explained = lenet().explain(4)
    shown = ElementTree.fromstring(explained._repr_html_())
    text = "".join(shown.itertext())
    assert "@lenet, rank 0" in text and "grad/fc1.weight" in text and "overlap-collectives" in text
    assert len(shown.findall(".//svg/g")) == len(explained.communications)
    ElementTree.fromstring(lenet().explain(1)._repr_html_())


def test_the_page_has_the_drawing_if_there_is_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_drawing = saved(mlp(), tmp_path / "drawn.html", 2)
    assert "drawing" in with_drawing.text and "all_reduce along data" in with_drawing.text
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "drawing" not in saved(mlp(), tmp_path / "plain.html", 2).text


@pytest.mark.parametrize("name", ["resnet50", "gpt"])
def test_pages_of_large_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "examples")])
    step = importlib.import_module("verify_time").MODELS[name]()
    begin = time.process_time()
    explained = step.explain(4)
    explained.save_html(tmp_path / "page.html")
    assert time.process_time() - begin < 60
    page = Page(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 5 << 20
    assert "more lines: PassChange.diff() returns all" in page.text
    gradients = sum(4 * int(np.prod(state.shape)) for state in step.states if state.name in step.trained)
    communicated = sum(
        tensor.bytes
        for each in explained.communications
        for tensor in each.tensors
        if tensor.name.startswith("grad/") and "data" in each.axis
    )
    assert communicated == gradients


# --- Errors -----------------------------------------------------------------------------------------------------------


def test_errors(tmp_path: Path) -> None:
    step = lenet()
    for call, message in (
        (lambda: step.explain(0), "explain: ranks is 0, expected at least 1"),
        (lambda: step.explain(2, rank=2), "explain: rank is 2, expected one of 2 ranks, from 0"),
        (lambda: step.explain(2, rank=-1), "explain: rank is -1, expected at least 0"),
        (lambda: step.explain(depth=0), "explain: depth is 0, expected at least 1"),
        (lambda: step.explain(3), "dimension 0 of input %image"),
        (lambda: step.explain(4, mesh={"data": 2}), "2"),
        (lambda: step.explain(machine="fast"), "explain: machine is 'fast', expected a lockstep.forecast.Machine"),
        (lambda: step.save_html(tmp_path / "no" / "page.html"), "no/page.html cannot be written"),
        (
            lambda: step.save_html(tmp_path / "page.html", other=5),
            "save_html: other is 5, expected a lockstep.Graph, or",
        ),
    ):
        with raises(message):
            call()
    with pytest.raises(TypeError, match=r"explain\(\) has no option 'wires'.*wire"):
        step.explain(2, wires="bf16")
    assert not list(tmp_path.iterdir())
