"""Placements of states by pattern, and searched plans: n ranks compute what one does, and hold less."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from cases import CASES
from example_parts import part
from limited_memory import wide_step
from lockstep._compile import placements as _placements
from lockstep.forecast import Link, Machine
from ranks import errors_of, mpirun, run_in_threads
from test_errors import mlp, raises

HERE = Path(__file__).parent
gpt = part("language/model").gpt
LENET, MLP, CONVNET = CASES
MODEL, BOTH = {"data": 1, "model": 2}, {"data": 2, "model": 2}
MEGATRON = {
    "*.attention.query.*": ls.split(0, "model"), "*.attention.key.*": ls.split(0, "model"),
    "*.attention.value.*": ls.split(0, "model"), "*.attention.out.weight": ls.split(1, "model"),
    "*.mlp.up.*": ls.split(0, "model"), "*.mlp.down.weight": ls.split(1, "model"),
}  # fmt: skip
LAYERS, BATCH, LENGTH = 2, 4, 8
OPTIMIZERS = [ls.optim.SGD(0.1), ls.optim.SGD(0.1, momentum=0.9), ls.optim.Adam(0.01, epsilon=1e-3)]
everything = pytest.mark.everything
optimizers = pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(OPTIMIZERS[0], id="sgd", marks=everything),
        pytest.param(OPTIMIZERS[1], id="momentum", marks=everything),
        pytest.param(OPTIMIZERS[2], id="adam"),
    ],
)
# A machine on which splits pay off, and one on which only a memory limit makes splits necessary.
FAST = Machine(ranks=4, within=Link(1e-7, 1e11), operations=1e8, memory=1e8)
SLOW = Machine(ranks=4, within=Link(1e-2, 1e6))


def gpt_step(optimizer: ls.optim.Optimizer, dropout: float = 0.1, **options: int | bool) -> ls.Graph:
    sizes = {"layers": LAYERS, "width": 16, "heads": 4, "length": LENGTH, "separate": True} | options
    model = ls.load_onnx(gpt(dropout=dropout, **sizes), dims={"batch": BATCH})
    return ls.train_step(model, loss=ls.loss.softmax_cross_entropy("logits", "label"), optimizer=optimizer)


def training(case, optimizer: ls.optim.Optimizer) -> ls.Graph:
    model = ls.load_onnx(case.model, dims={"batch": 8})
    return ls.train_step(model, loss=ls.loss.softmax_cross_entropy("logits", "label"), optimizer=optimizer)


def batches_of(step: ls.Graph, steps: int) -> list[dict[str, np.ndarray]]:
    """Inputs of the whole batch; labels and tokens from 0 to 3."""
    random = np.random.Generator(np.random.PCG64(3))

    def value(info: ls.ValueInfo) -> np.ndarray:
        if info.dtype == "i64":
            return random.integers(0, 4, info.shape)
        return random.standard_normal(info.shape).astype(np.float32)

    return [{info.name: value(info) for info in step.inputs} for _ in range(steps)]


def learn(world: ls.Communicator, step: ls.Graph, mesh: dict[str, int] | None, steps: int = 3, **options):
    """The losses, the states by name, and the executable."""
    exe = ls.compile(step, world=world, mesh=mesh, threads=1, **options)
    share = world.rank // mesh["model"] if mesh else 0
    parts = mesh["data"] if mesh else 1
    losses = []
    for batch in batches_of(step, steps):
        rows = {name: np.split(value, parts)[share] for name, value in batch.items()}
        losses.append(float(exe(**rows)["loss"]))
    exe.check_replicas()
    return losses, {name: exe.state[name] for name in exe.state}, exe


def whole(parts: list[np.ndarray], placement: ls.Placement) -> np.ndarray:
    """A whole state from the parts of the first ranks, which are those along "model"."""
    dims = dict(placement.splits)
    return np.concatenate(parts, axis=dims["model"]) if "model" in dims else parts[0]


def assert_is_that_of_one_rank(step: ls.Graph, mesh: dict[str, int], placements) -> list[ls.Executable]:
    [(losses, states, _)] = run_in_threads(1, lambda world: learn(world, step, None))
    ranks = mesh["data"] * mesh["model"]
    results = run_in_threads(ranks, lambda world: learn(world, step, mesh, placements=placements))
    assert len(results) == ranks
    for result in results:
        assert not isinstance(result, Exception), result
        np.testing.assert_allclose(result[0], losses, rtol=2e-5)
        assert result[0] == results[0][0]
    for name, expected in states.items():
        of = results[0][2].graph
        shape = next(each.placements for each in of.states if each.name == name).get("model", "")
        dim = re.fullmatch(r"split\((\d+)\)", shape)
        placement = ls.split(int(dim[1]), "model") if dim else ls.replicated()
        found = whole([result[1][name] for result in results[: mesh["model"]]], placement)
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-5, err_msg=name)
    return [result[2] for result in results]


@optimizers
@pytest.mark.parametrize("mesh", [MODEL, BOTH], ids=["2", "4"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_found_plans_learn_what_one_rank_does(case, mesh: dict[str, int], optimizer: ls.optim.Optimizer) -> None:
    step = training(case, optimizer)
    plan = ls.plan(step, mesh, machine=FAST)
    assert any(placement != ls.replicated() for placement in plan.values()), plan
    executables = assert_is_that_of_one_rank(step, mesh, plan)
    for exe in executables:
        for state in plan.states:
            expected = {"model": f"split({dict(state.placement.splits)['model']})"} if state.placement.splits else {}
            assert next(each for each in exe.graph.states if each.name == state.name).placements == expected


@optimizers
@pytest.mark.parametrize("mesh", [MODEL, BOTH], ids=["2", "4"])
def test_a_transformer_learns_what_one_rank_does(mesh: dict[str, int], optimizer: ls.optim.Optimizer) -> None:
    step = gpt_step(optimizer)
    exe = assert_is_that_of_one_rank(step, mesh, MEGATRON)[0]
    shapes = {each.name: each.shape for each in exe.graph.states}
    assert shapes["blocks.0.mlp.up.weight"] == (32, 16)
    assert shapes["blocks.1.attention.out.weight"] == (16, 8)
    assert shapes["blocks.1.norm2.bias"] == (16,)
    plan = ls.plan(step, mesh, machine=FAST)
    assert any(placement.splits for name, placement in plan.items() if "attention" in name)
    assert_is_that_of_one_rank(step, mesh, plan)


def collectives_along_model(step: ls.Graph, placements) -> Counter[str]:
    text = str(ls.distribute(step, MODEL, placements=placements))
    return Counter(re.findall(r" = (\w+) .*\{axis=model", text))


def test_a_transformer_needs_two_sums_a_block_and_direction() -> None:
    for dropout in (0.0, 0.1):
        assert collectives_along_model(gpt_step(OPTIMIZERS[2], dropout), MEGATRON) == {"all_reduce": 4 * LAYERS}


def test_a_transformer_over_mpi(tmp_path: Path) -> None:
    done = mpirun(4, HERE / "mpi_placements.py", tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    step = gpt_step(OPTIMIZERS[2])
    in_process = run_in_threads(4, lambda world: learn(world, step, BOTH, placements=MEGATRON))
    for rank, (losses, states, _) in zip(ranks, in_process, strict=True):
        assert rank["size"] == 4
        assert rank["losses"] == losses, "bitwise"
        assert rank["shapes"] == {name: list(value.shape) for name, value in states.items()}


def test_the_first_pattern_that_matches_counts() -> None:
    step = training(MLP, OPTIMIZERS[2])
    placed = ls.distribute(
        step, MODEL, placements={"fc1.bias": ls.replicated(), "fc1.*": ls.split(0, "model"), "fc*": ls.replicated()}
    )
    where = {each.name: each.placements for each in placed.states if each.placements}
    names = ("fc1.weight", "fc1.weight/adam_m", "fc1.weight/adam_v")
    assert where == {name: {"model": "split(0)"} for name in names}, "includes the optimizer's states"


def test_split_names_go_before_patterns() -> None:
    placed = ls.distribute(
        training(MLP, OPTIMIZERS[0]), MODEL, {"fc1.weight": {"model": 1}}, {"fc1.*": ls.split(0, "model")}
    )
    where = {each.name: each.placements["model"] for each in placed.states if each.placements}
    assert where == {"fc1.weight": "split(1)", "fc1.bias": "split(0)"}


def test_joined_axes() -> None:
    mesh = {"data": 1, "rows": 2, "model": 2}
    both = ls.split(0, "rows") & ls.split(1, "model")
    assert str(both) == "split(1, model) & split(0, rows)"
    placed = ls.distribute(training(MLP, OPTIMIZERS[0]), mesh, placements={"fc1.weight": both})
    where = {each.name: each.placements for each in placed.states if each.placements}
    assert where == {"fc1.weight": {"rows": "split(0)", "model": "split(1)"}}
    with raises("split(0, rows) & split(1, rows)", "axis rows only once"):
        ls.split(0, "rows") & ls.split(1, "rows")
    for placement in (both, ls.replicated()):
        assert type(both).parse(str(placement)) == placement
    with raises('\'split(0)\' is not a placement, expected text such as "split(0, model)" or "replicated"'):
        type(both).parse("split(0)")


@pytest.mark.parametrize(
    ("placements", "parts"),
    [
        (
            {"fc9*": ls.replicated()},
            ["graph @mlp has no input or state 'fc9*', and none that it matches", "fc1.weight"],
        ),
        ({"fc1.w*": ls.split(0, "rows")}, ["fc1.weight (f32[16,12]) along axis rows", "has no such axis"]),
        ({"fc1*": ls.split(1, "model")}, ["fc1.bias (f32[16]) along axis model: there is no dimension 1"]),
        ({"fc3.weight": ls.split(0, "model")}, ["fc3.weight (f32[5,8]) along axis model", "share dimension 0 evenly"]),
        ({"fc1*": {"model": 0}}, ["placements: 'fc1*' is {'model': 0}, expected lockstep.split()"]),
        ([], ["placements is [], expected names or patterns"]),
        ({3: ls.replicated()}, ["a name in placements is 3"]),
    ],
)
def test_bad_placements(placements, parts: list[str]) -> None:
    with raises(*parts):
        ls.distribute(mlp(), BOTH, placements=placements)
    messages = errors_of(4, lambda world: ls.compile(mlp(), world=world, mesh=BOTH, placements=placements))
    assert len(messages) == 4
    for message in messages:
        for expected in parts:
            assert expected in message


def test_what_has_no_effect_is_an_error() -> None:
    placements = {"fc*": ls.replicated(), "fc1.weight": ls.split(0, "model")}
    with raises("placement: 'fc1.weight' has no effect: choices before it, such as 'fc*', match all that it matches"):
        ls.distribute(mlp(), MODEL, placements=placements)
    with raises("split: dim is -1, expected at least 0"):
        ls.split(-1, "model")


def test_a_state_without_dimensions() -> None:
    graph = ls.parse(
        "graph @scaled(%x: f32[4,6] split(0), state %t: f32[]) -> (y: f32[4,6] split(0)) {\n"
        "  %b = broadcast %t {dims=[], shape=[4,6]} : f32[4,6]\n"
        "  %y = mul %x, %b : f32[4,6]\n"
        "  return %y\n"
        "}\n"
    )
    with raises("placement: t (f32[]) along axis model: there is no dimension 0"):
        ls.distribute(graph, MODEL, placements={"*t": ls.split(0, "model")})


def test_a_plan_is_printed_saved_and_read(tmp_path: Path) -> None:
    step = training(MLP, OPTIMIZERS[2])
    plan = ls.plan(step, BOTH, machine=FAST)
    text = str(plan)
    assert text.startswith("plan of @mlp for {data=2, model=2}, exact\n")
    assert re.search(r"fc1.weight +f32\[16,12\] +\d+ bytes  split\(\d, model\)", text)
    assert "all replicated: " in text
    assert "\n  2. " in text
    assert plan.exact
    assert plan.runners_up[0].changes
    assert plan.costs.seconds <= plan.runners_up[0].costs.seconds
    assert plan.costs.seconds < plan.replicated.seconds
    plan.save(tmp_path / "plan.toml")
    read = ls.Plan.read(tmp_path / "plan.toml")
    assert read == plan
    assert str(read) == text
    assert str(ls.plan(step, BOTH, machine=FAST)) == text, "the same each time"
    (tmp_path / "plan.toml").write_text('mesh = "four"\n')
    with raises(str(tmp_path / "plan.toml"), "is not a plan"):
        ls.Plan.read(tmp_path / "plan.toml")
    with raises(str(tmp_path / "none.toml"), "cannot be read"):
        ls.Plan.read(tmp_path / "none.toml")


def test_the_first_entry_that_matches_counts() -> None:
    patterns = {"w*": ls.split(1, "model"), "w2": ls.replicated(), "v": ls.split(0, "data")}
    given = _placements.choices({"w1": {"model": 0}}, patterns)
    assert _placements.chosen(given, ["w1", "w2", "v", "b"]) == {
        "w1": {"model": 0},
        "w2": {"model": 1},
        "v": {"data": 0},
    }


def test_a_plan_has_a_mesh() -> None:
    step = training(MLP, OPTIMIZERS[0])
    plan = ls.plan(step, MODEL, machine=FAST)
    results = run_in_threads(2, lambda world: ls.compile(step, world=world, placements=plan, threads=1).collectives)
    assert all("along model" in line for line in results[0])
    assert results[0]
    with raises("mesh is {'model': 1}, but placements is a plan for the mesh {'data': 1, 'model': 2}"):
        ls.compile(step, mesh={"model": 1}, placements=plan)
    with raises("mesh is {'model': 2, 'data': 1}, but placements is a plan for"):  # the ranks of another order
        ls.compile(step, mesh={"model": 2, "data": 1}, placements=plan)


def test_a_plan_that_shares_nothing_says_so_and_compiles(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ls._base.log, "_warned", set())
    step = training(MLP, OPTIMIZERS[0])
    plan = ls.plan(step, MODEL, machine=SLOW)
    assert plan.unused == ["model"]
    assert "\n  no state is split along model, whose ranks all compute the same\n" in str(plan)
    inputs = batches_of(step, 1)[0]
    with caplog.at_level(logging.WARNING, "lockstep"):
        exes = run_in_threads(2, lambda world: ls.compile(step, world=world, placements=plan, threads=1)(**inputs))
    assert [each.message for each in caplog.records] == [
        "the plan splits no state along model: the ranks along it all compute the same"
    ]
    expected = ls.compile(step, threads=1)(**inputs)["loss"]
    assert [each["loss"] for each in exes] == [expected, expected]
    whole = ls.load_onnx(MLP.model, dims={"batch": 8}, split={})
    idle = ls.plan(whole, {"data": 2, "model": 2}, machine=SLOW)
    assert idle.unused == ["model"]
    for message in errors_of(4, lambda world: ls.compile(whole, world=world, placements=idle)):
        assert "2 ranks along axis data, and none of its inputs is split over them" in message


def test_given_placements_are_part_of_the_plan() -> None:
    step = training(MLP, OPTIMIZERS[0])
    plan = ls.plan(step, MODEL, machine=SLOW, placements={"fc2.weight": ls.split(1, "model")})
    assert plan["fc2.weight"] == ls.split(1, "model")
    assert plan["fc1.weight"] != ls.split(1, "model")


def test_states_that_one_rank_has_no_room_for() -> None:
    """The limit is below the memory of a rank with all states. The plan respects it, and so does the executable."""
    step = gpt_step(OPTIMIZERS[2], width=64)
    mesh = {"data": 1, "model": 4}
    free = ls.plan(step, mesh, machine=SLOW)
    assert free.costs == free.replicated, "on this machine no split pays off"
    states = free.costs.states
    [of_one] = run_in_threads(1, lambda world: learn(world, step, None, 1)[2].memory)
    assert of_one["states"] > 0.9 * states
    limit = states
    plan = ls.plan(step, mesh, machine=SLOW, memory_limit=limit)
    assert plan.costs.bytes <= limit < free.costs.bytes
    with raises("memory_limit"):
        ls.compile(step, threads=1, memory_limit=limit)
    results = run_in_threads(4, lambda world: learn(world, step, mesh, 2, placements=plan, memory_limit=limit))
    for result in results:
        assert not isinstance(result, Exception), result
        assert sum(result[2].memory.values()) <= limit
        assert result[2].memory["states"] == plan.costs.states
    [(losses, _, _)] = run_in_threads(1, lambda world: learn(world, step, None, 2))
    np.testing.assert_allclose(results[0][0], losses, rtol=2e-5)
    with raises("with the smallest plan that was found for @gpt, and memory_limit is 1000"):
        ls.plan(step, mesh, machine=SLOW, memory_limit=1000)


def test_a_process_without_room(tmp_path: Path) -> None:
    """The operating system limits each process' memory: one process cannot hold the states, and four can."""
    step = wide_step()
    plan = ls.plan(step, {"data": 1, "model": 4}, machine=SLOW, memory_limit=60 << 20)
    plan.save(tmp_path / "plan.toml")
    assert plan.replicated.states > 90 << 20
    more = str(plan.replicated.states)
    alone = subprocess.run(
        [sys.executable, HERE / "limited_memory.py", tmp_path, more, "alone"],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert alone.returncode != 0
    assert not list(tmp_path.glob("*.json"))
    done = mpirun(4, HERE / "limited_memory.py", tmp_path, more)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for rank in ranks:
        assert rank["size"] == 4
        assert rank["losses"] == ranks[0]["losses"]
        assert rank["states"] == plan.costs.states < plan.replicated.states / 3


def test_a_plan_of_six_layers_takes_seconds() -> None:
    step = gpt_step(OPTIMIZERS[2], layers=6, width=128, length=64)
    begin = time.process_time()
    plan = ls.plan(step, BOTH, machine=FAST)
    assert time.process_time() - begin < 30, "it takes a few seconds on an idle machine"
    assert plan.costs.seconds < plan.replicated.seconds


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"mesh": {"data": 0, "model": 2}}, ["plan: mesh: the size of axis data is 0"]),
        ({"mesh": {"data": 2}}, ["plan: the mesh {data=2} has no axis of several ranks, other than data"]),
        (
            {"mesh": {"stage": 2}},
            ["plan: mesh is {'stage': 2}: stages are not planned; compile divides a step into stages"],
        ),
        (
            {"mesh": {"model": 40000}},
            ["plan: mesh is {'model': 40000}, which has too many ranks; expected at most 32768"],
        ),
        ({"mesh": MODEL, "memory_limit": 0}, ["plan: memory_limit is 0"]),
        ({"mesh": MODEL, "machine": 3}, ["plan: machine is 3"]),
        ({"mesh": MODEL, "machine": Machine(ranks=2)}, ["axis model", "the machine has no link within a host"]),
        ({"mesh": MODEL, "machine": Machine()}, ["axis model", "2 hosts", "the machine has no link between hosts"]),
        ({"mesh": {"model": 7, "data": 1}}, ["no state that the 7 ranks along axis model can share evenly"]),
    ],
)
def test_what_cannot_be_planned(options, parts: list[str]) -> None:
    with raises(*parts):
        ls.plan(training(MLP, OPTIMIZERS[0]), **options)


def test_slow_networks_are_seen() -> None:
    """Splits that pay off within a host do not between hosts."""
    step = training(MLP, OPTIMIZERS[0])
    between = Link(1e-2, 1e6)
    of_hosts = Machine(ranks=2, within=FAST.within, between=between, operations=1e8, memory=1e8)
    within = ls.plan(step, {"data": 2, "model": 2}, machine=of_hosts)  # ranks 0 and 1 split weights
    across = ls.plan(step, {"model": 2, "data": 2}, machine=of_hosts)  # ranks 0 and 2 split weights
    assert any(placement.splits for placement in within.values())
    assert not any(placement.splits for placement in across.values())
