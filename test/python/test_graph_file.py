"""Graph.save, load_graph, pickle and copy: a loaded graph computes the same bits as the saved one."""

from __future__ import annotations

import copy
import errno
import functools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES
from lockstep._graph import graph_file
from ranks import run_in_threads
from test_checkpoint_file import with_header
from test_errors import raises

LENET, MLP, CONVNET = CASES
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
X = np.random.default_rng(3).standard_normal((6, 8)).astype(np.float32)
LABEL = np.array([0, 1, 2, 3, 0, 1], np.int32)
SCHEDULE = ls.schedule.cosine(0.1, steps=5).after_warmup(2)


def through_file(graph: ls.Graph, folder: Path) -> ls.Graph:
    graph.save(folder / "one.graph")
    return ls.load_graph(folder / "one.graph")


def through_pickle(graph: ls.Graph, folder: Path) -> ls.Graph:
    return pickle.loads(pickle.dumps(graph))


def through_copy(graph: ls.Graph, folder: Path) -> ls.Graph:
    return copy.deepcopy({"graph": graph})["graph"]


WAYS = [through_file, through_pickle, through_copy, lambda graph, folder: copy.copy(graph)]


def module() -> Any:
    """A module with everything that a graph can contain: large and small constants, statistics, dropout, a frozen
    parameter.
    """
    torch = pytest.importorskip("torch")
    torch.manual_seed(2)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = torch.nn.Linear(8, 5), torch.nn.BatchNorm1d(5)
            self.drop, self.out = torch.nn.Dropout(0.3), torch.nn.Linear(5, 4)
            self.frozen = torch.nn.Parameter(torch.randn(5, 5), requires_grad=False)
            self.register_buffer("table", torch.full((5,), float("nan")))

        def forward(self, x: Any) -> Any:
            hidden = self.drop(torch.relu(self.norm(self.first(x)))) @ self.frozen
            return self.out(torch.where(torch.isnan(self.table), hidden, self.table))

    return Net()


@functools.cache
def imported() -> ls.Graph:
    torch = pytest.importorskip("torch")
    return ls.from_torch(module(), torch.zeros(2, 8), dims={"batch": 6}, output_names=["logits"])


def step_of(model: ls.Graph) -> ls.Graph:
    return ls.train_step(
        model,
        LOSS,
        ls.optim.AdamW(SCHEDULE, weight_decay=0.1),
        clip=ls.clip.global_norm(1.0),
        average=ls.average.exponential(0.9),
        seed=7,
    )


def trained(
    step: ls.Graph, world: ls.Communicator | None = None
) -> tuple[list[bytes], dict[str, bytes], ls.Executable]:
    exe = ls.compile(step, threads=1, **({} if world is None else {"world": world}))
    rows = slice(None) if world is None else slice(6 // world.size * world.rank, 6 // world.size * (world.rank + 1))
    losses = [exe(x=X[rows], label=LABEL[rows])["loss"].tobytes() for _ in range(5)]
    return losses, {name: value.tobytes() for name, value in exe.state.items()}, exe


def graphs() -> list[ls.Graph]:
    """Graphs of each kind: models; steps, also with micro-batches and in 16 bits; gradients; evaluations; placed
    graphs; compiled graphs.
    """
    mlp, loss = ls.load_onnx(MLP.model, dims={"batch": 8}), ls.loss.softmax_cross_entropy()
    step = ls.train_step(mlp, loss, ls.optim.SGD(0.1, momentum=0.9), accumulate=2, precision="f16")
    return [
        imported(),
        step_of(imported()),
        ls.load_onnx(LENET.model, dims={"batch": 8}),
        step,
        ls.train_step(mlp, loss, optimizer=None),
        ls.evaluation(mlp, loss),
        ls.distribute(step, {"data": 2}),
        ls.compile(step, threads=1).graph,
        ls.parse("graph @empty(%x: f32[0]) -> (x: f32[0]) {\n  return %x\n}\n"),
    ]


@pytest.mark.parametrize("through", WAYS, ids=["file", "pickle", "deepcopy", "copy"])
def test_a_graph_comes_back_as_it_was(through: Callable[..., ls.Graph], tmp_path: Path) -> None:
    for graph in graphs():
        found = through(graph, tmp_path)
        assert str(found) == str(graph)
        for fact in (
            "name",
            "inputs",
            "states",
            "settings",
            "results",
            "trained",
            "constants",
            "fixed_inputs",
            "notes",
        ):
            assert getattr(found, fact) == getattr(graph, fact), fact
        assert found._supposed_parameters == graph._supposed_parameters
        assert getattr(found, "_schedules", {}) == getattr(graph, "_schedules", {})
        for state in graph.states:
            assert found.initial_value(state.name).tobytes() == graph.initial_value(state.name).tobytes(), state.name


@pytest.mark.parametrize("through", WAYS[:2], ids=["file", "pickle"])
def test_a_step_trains_bit_by_bit_as_before(through: Callable[..., ls.Graph], tmp_path: Path) -> None:
    """The step is made from a loaded model, or loaded itself; it trains on one rank and on two, along its schedule, and
    is written to the same ONNX file.
    """
    model = imported()
    losses, states, exe = trained(step_of(model))
    assert len(set(losses)) == 5 and "random/seed" in states and "first.weight/average" in states
    ls.save_onnx(exe, tmp_path / "expected.onnx")
    for each in (step_of(through(model, tmp_path)), through(step_of(model), tmp_path)):
        found = trained(each)
        assert found[0] == losses and found[1] == states
        ls.save_onnx(found[2], tmp_path / "found.onnx")
        assert (tmp_path / "found.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()
    loaded = through(step_of(model), tmp_path)
    expected = run_in_threads(2, lambda world: trained(step_of(model), world)[:2])
    assert run_in_threads(2, lambda world: trained(loaded, world)[:2]) == expected


def test_a_loaded_model_has_other_dims(tmp_path: Path) -> None:
    model = imported()
    loaded = through_file(model, tmp_path)
    assert str(loaded.with_dims(batch=2)) == str(model.with_dims(batch=2))
    assert str(through_file(model.with_dims(batch=3), tmp_path).with_dims(batch=2)) == str(model.with_dims(batch=2))
    with raises("with_dims", "was made from one"):
        through_file(step_of(model), tmp_path).with_dims(batch=2)
    with raises("with_dims", "is not a model from load_onnx"):
        through_file(ls.parse(str(model)), tmp_path).with_dims(batch=2)


def test_what_was_given_at_import_comes_back(tmp_path: Path) -> None:
    """The dims, split, values, constants and states of load_onnx."""
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[n,4] x, int64[1] k, float[n] y) => (float[n,4] z, float[n] v) <float[4] table = {1,2,3,4}, float scale = {0.5}> {
      a = Mul(x, scale)
      b = Tile(table, k)
      z = Add(a, b)
      v = Identity(y)
    }"""
    options = {"split": {"x": 0, "y": 0}, "constants": ["table"], "states": ["scale"], "values": {"k": np.array([1])}}
    model = ls.load_onnx(onnx.parser.parse_model(text), dims={"n": 4}, **options)
    loaded = through_file(model, tmp_path)
    assert loaded.fixed_inputs == ["k"] and loaded.constants == ["table"] and loaded.states == model.states
    assert str(loaded.with_dims(n=2)) == str(model.with_dims(n=2))


SCHEDULES = [
    ls.schedule.constant(0.1),
    ls.schedule.step(0.1, every=2),
    ls.schedule.multi_step(0.1, [2, 4]),
    ls.schedule.exponential(0.1, 0.9),
    ls.schedule.linear(0.1, 0.3, 7),
    ls.schedule.polynomial(0.1, 5, 2.0),
    ls.schedule.cosine(0.1, 5, 0.01),
    ls.schedule.cosine_with_restarts(0.1, 3, 2),
    ls.schedule.one_cycle(0.1, 9).after_warmup(3, 0.5),
    ls.average.exponential(0.9),
    ls.average.stochastic(3, 2),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.description)
def test_each_schedule_is_in_the_file(schedule: ls.schedule.Schedule, tmp_path: Path) -> None:
    model = ls.parse("graph @m(state %w: f32[2]) -> (y: f32[2]) {\n  %y = exp %w : f32[2]\n  return %y\n}\n")
    model._schedules = {"optimizer/momentum": schedule}
    found = through_file(model, tmp_path)._schedules["optimizer/momentum"]
    assert found == schedule and found is not schedule
    assert [found(i) for i in range(20)] == [schedule(i) for i in range(20)]


def test_no_schedule_is_forgotten() -> None:
    tried = {each.description.split("(")[0] for each in SCHEDULES}
    there_are = {f"{module.__name__}.{name}" for module in (ls.schedule, ls.average) for name in module.__all__}
    assert tried == {name.removeprefix("lockstep.") for name in there_are} - {"schedule.Schedule"}


def own_schedule(step: int) -> float:
    return 0.1 / (1 + step)


def test_a_function_of_ones_own_is_in_no_file_but_can_be_pickled(tmp_path: Path) -> None:
    step = ls.train_step(ls.load_onnx(MLP.model, dims={"batch": 4}), LOSS, ls.optim.SGD(own_schedule))
    with raises(
        "one.graph: the setting optimizer/learning_rate follows <function own_schedule", "which a file cannot represent"
    ):
        step.save(tmp_path / "one.graph")
    assert not list(tmp_path.iterdir())
    for each in (through_pickle(step, tmp_path), through_copy(step, tmp_path)):
        assert each._schedules == {"optimizer/learning_rate": own_schedule}


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model = tmp_path / "one.graph", ls.load_onnx(MLP.model, dims={"batch": 4})

    def begin(out: Any, *rest: Any) -> None:
        out.write(b"a part of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    model.save(path)
    with monkeypatch.context() as patch, raises(f"{path}: No space left"):
        patch.setattr(graph_file, "write_tensors", begin)
        model.with_dims(batch=2).save(path)
    assert str(ls.load_graph(path)) == str(model)
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_no_graphs(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "one.graph", tmp_path / "one.safetensors"
    model = ls.load_onnx(MLP.model, dims={"batch": 4})
    exe = ls.compile(model)
    exe.save(checkpoint)
    with raises(f"{checkpoint}: this is a checkpoint, which load() reads, not a graph"):
        ls.load_graph(checkpoint)
    model.save(path)
    with raises(f"{path}: this is a graph, which load_graph() reads, not a checkpoint"):
        exe.load(path)
    with raises("this is not a graph that Graph.save() wrote"):
        ls.load_graph(_written(tmp_path / "text", b"\x09" + b"\0" * 7 + b"some text"))
    with raises(f"{tmp_path / 'none'}: No such file"):
        ls.load_graph(tmp_path / "none")
    with raises(f"{tmp_path / 'no' / 'folder'}: No such file"):
        model.save(tmp_path / "no" / "folder")


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_file_that_was_cut_off_or_damaged_or_is_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "one.graph"
    ls.load_onnx(MLP.model, dims={"batch": 4}).save(path)
    content = path.read_bytes()
    for length in (0, 7, 100, len(content) // 2, len(content) - 1):
        with raises(f"{path}: ", "truncated" if length > 7 else "or it is truncated"):
            ls.load_graph(_written(path, content[:length]))
    for at in (8, 200, len(content) // 2, len(content) - 1):
        with raises(f"{path}: ", "this is not a graph" if at == 8 else "damaged"):
            ls.load_graph(_written(path, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]))
    path.write_bytes(content)
    with_header(path, lambda header: header["__metadata__"].update({"lockstep.graph": "2"}))
    with raises(f"{path}: its format is of version 2; this Lockstep reads version 1"):
        ls.load_graph(path)


def _facts(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(header: dict[str, Any]) -> None:
        facts = json.loads(header["__metadata__"]["lockstep.facts"])
        change(facts)
        header["__metadata__"]["lockstep.facts"] = json.dumps(facts)

    return apply


def _swapped(one: str, other: str) -> Callable[[dict[str, Any]], Any]:
    """Swaps the names of two parts, or renames one part if the other does not exist."""
    names = {one: other, other: one}

    def apply(header: dict[str, Any]) -> dict[str, Any]:
        digests = json.loads(header["__metadata__"]["lockstep.tensors"])
        renamed = {names.get(name, name): each for name, each in digests.items()}
        header["__metadata__"]["lockstep.tensors"] = json.dumps(renamed)
        return {names.get(name, name): each for name, each in header.items()}

    return apply


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_facts(lambda facts: facts.pop("notes")), "malformed fact notes"),
        (_facts(lambda facts: facts.update(constants=[1])), "malformed fact constants"),
        (_facts(lambda facts: facts.update(origin=None)), "is incomplete"),
        (_facts(lambda facts: facts["origin"].update(dims=["n"])), "malformed fact dims"),
        (_swapped("graph", "text"), "text is not a part of a graph"),
        (_swapped("model", "constant/none"), "a constant has a value but is not in the graph"),
        (_swapped("state/fc1.bias", "state/fc2.bias"), "the value of state fc1.bias is f32[8], the state f32[16]"),
    ],
)
def test_parts_that_do_not_fit_are_errors(change: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    """Files that another version of Lockstep, or a person, may write."""
    path = tmp_path / "one.graph"
    ls.load_onnx(MLP.model, dims={"batch": 4}).save(path)
    with_header(path, change)
    with raises(
        f"{path}: this Lockstep, {ls.__version__}, does not understand the graph, which {ls.__version__} wrote: ", said
    ):
        ls.load_graph(path)
