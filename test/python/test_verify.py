"""verify(), compile(verify=True) and `lockstep verify`: n ranks equal one rank in exact arithmetic."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import architectures
import lockstep as ls
from cases import CASES, MLP_SPLIT, Case
from ranks import run_in_threads

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.append(str(EXAMPLES))

RECIPES: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": ls.optim.Adam(0.01)},
    "clipped": {"optimizer": ls.optim.AdamW(0.01), "clip": ls.clip.global_norm(1.0)},
    "bf16": {"optimizer": ls.optim.SGD(0.1, momentum=0.9), "precision": "bf16"},
    "f16": {"optimizer": ls.optim.SGD(0.1), "precision": "f16"},
    "uneven": {"optimizer": ls.optim.SGD(0.1), "uneven": True},
    "accumulate": {"optimizer": ls.optim.SGD(0.1), "accumulate": 2},
    "lamb": {"optimizer": ls.optim.LAMB(0.01)},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "shard_optimizer": {"shard_optimizer": True},
    "bf16 wire": {"wire": "bf16"},
    "int8 wire": {"wire": "int8"},
    "factors": {"factors": True},
    "no optimization": {"optimize": False},
    "small buckets": {"bucket_bytes": 64},
}


def step_of(case: Case, optimizer: ls.optim.Optimizer, **recipe: Any) -> ls.Graph:
    model = ls.load_onnx(case.model, dims={"batch": 8})
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), optimizer, **recipe)


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(case: Case, recipe: str) -> None:
    if case.name == "convnet_bn" and recipe == "accumulate":
        pytest.skip("batch normalisation of micro-batches is of each rank")
    ls.verify(step_of(case, **RECIPES[recipe]), 2)


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_options(case: Case, options: str, ranks: int) -> None:
    ls.verify(step_of(case, ls.optim.SGD(0.1, momentum=0.9)), ranks, **OPTIONS[options])


def test_a_mesh_of_two_axes() -> None:
    ls.verify(step_of(CASES[1], ls.optim.Adam(0.01)), 4, mesh={"data": 2, "model": 2}, split=MLP_SPLIT)


def test_stages() -> None:
    ls.verify(step_of(CASES[1], ls.optim.SGD(0.1), accumulate=2), 2, mesh={"stage": 2})


@pytest.mark.parametrize("file", [file for file in architectures.files() if file.endswith(".export")])
def test_architectures(file: str) -> None:
    about, _, label, _ = architectures.read(file.split(".")[0])
    model = ls.load_onnx(architectures.model_bytes(file), {"batch": len(label)})
    if about["loss"] == "cross_entropy":
        loss = ls.loss.softmax_cross_entropy("output", "label")
    else:
        loss = ls.loss.mean_squared_error("output", "label")
    ls.verify(ls.train_step(model, loss, ls.optim.SGD(1.0, momentum=0.9)), 2)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_any_number_of_ranks(size: int) -> None:
    model = ls.load_onnx(CASES[1].model, dims={"batch": 2 * size})
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    assert ls.verify(ls.train_step(model, loss, ls.optim.Adam(0.01)), size) == (
        "adam means its decomposition",
        "softmax_cross_entropy means its decomposition",
    )


def test_a_model_has_no_assumptions() -> None:
    assert ls.verify(ls.load_onnx(CASES[1].model, dims={"batch": 8}), 4) == ()


STEP = """
graph @step(%x: f32[4,3] split(0), %t: f32[4,2] split(0), state %w: f32[3,2]) -> (loss: f32[], %w: f32[3,2]) {
  %y = matmul %x, %w : f32[4,2]
  %d = sub %y, %t : f32[4,2]
  %s = mul %d, %d : f32[4,2]
  %loss = reduce_sum %s {dims=[0, 1]} : f32[]
  %dy = add %d, %d : f32[4,2]
  %grad/w = matmul %x, %dy {transpose_a=true} : f32[3,2]
  %w1 = sgd %w, %grad/w {learning_rate=0.1} : f32[3,2]
  return %loss, %w1
}
"""


def test_a_program_that_is_distributed_is_compared_with_itself() -> None:
    placed = ls.distribute(step_of(CASES[1], ls.optim.SGD(0.1)), {"data": 2})
    assert ls.verify(placed, 2) == (
        "gradients are not checked in a program that is distributed already",
        "sgd means its decomposition",
        "softmax_cross_entropy means its decomposition",
    )


def test_a_variance_that_is_a_maximum() -> None:
    program = """graph @f(%x: f32[4,8], %v: f32[2,8] split(0)) -> (y: f32[8]) {
      %m = reduce_max %v {dims=[0]} : f32[8]
      %y = unbiased_variance %x, %m : f32[8]
      return %y
    }"""
    assert ls.verify(ls.parse(program), 2) == ("unbiased_variance means its decomposition",)


# The pass recognize-attention multiplies both factors in floats.
def test_queries_and_keys_that_are_scaled_by_powers_of_two() -> None:
    program = """graph @f(%q: f32[4,6,8] split(0), %k: f32[4,6,8] split(0), %v: f32[4,6,8] split(0)) -> (y: f32[4,6,8]) {
      %c = constant {value=dense<f32[]: 0.5>} : f32[]
      %b = broadcast %c {dims=[], shape=[4, 6, 8]} : f32[4,6,8]
      %qs = mul %q, %b : f32[4,6,8]
      %ks = mul %k, %b : f32[4,6,8]
      %s = matmul %qs, %ks {transpose_b=true} : f32[4,6,6]
      %p = softmax %s {dim=2} : f32[4,6,6]
      %y = matmul %p, %v : f32[4,6,8]
      return %y
    }"""
    assumed = ("attention means its decomposition", "softmax means its decomposition")
    assert ls.verify(ls.parse(program), 2) == assumed


def test_results_are_split_along_two_axes() -> None:
    program = "graph @f(%x: f32[4,8]) -> (y: f32[4,8] split(0)) {\n  %y = exp %x : f32[4,8]\n  return %y\n}"
    mesh = {"data": 2, "model": 2}
    assert ls.verify(ls.parse(program), 4, mesh=mesh, split={"x": {"model": 1}}, replicated=True) == ()


def test_gradients_are_the_derivatives_of_the_loss() -> None:
    assert ls.verify(ls.parse(STEP), 2) == ("sgd means its decomposition",)
    wrong = ls.parse(STEP.replace("matmul %x, %dy", "matmul %x, %d"))
    with pytest.raises(ls.Error, match="the gradients of loss by w are not its derivatives"):
        ls.verify(wrong, 2)


def test_programs_without_a_loss_have_no_gradients_to_check() -> None:
    step = STEP.replace("(loss: f32[], ", "(other: f32[], ").replace("matmul %x, %dy", "matmul %x, %d")
    assert ls.verify(ls.parse(step), 2) == ("sgd means its decomposition",)


def test_a_result_that_is_nan_is_an_assumption() -> None:
    nan = "graph @f(%x: f32[4] split(0)) -> (y: f32[4]) {\n  %z = sub %x, %x : f32[4]\n  %y = div %z, %z : f32[4]\n  return %y\n}\n"
    assert ls.verify(ls.parse(nan), 2) == ("result y is NaN for random inputs, so nothing is known of it",)


def test_compilations_verify() -> None:
    step = step_of(CASES[1], ls.optim.SGD(0.1))

    def body(world: ls.Communicator) -> None:
        ls.compile(step, world=world, threads=1, verify=world.rank == 0)

    assert run_in_threads(2, body) == [None, None]


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (0, {}, "verify: ranks is 0, expected at least 1"),
        (65, {}, "verify: ranks is 65, expected at most 64"),
        (3, {}, "8 is not a multiple of 3"),
        (4, {"mesh": {"data": 2}}, "needs 2 ranks, and the world has 4"),
        (2, {"shard_optimizer": True, "wire": "bf16"}, "does not go with"),
    ],
)
def test_wrong_arguments(ranks: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ls.Error, match=message):
        ls.verify(step_of(CASES[1], ls.optim.SGD(0.1)), ranks, **options)


def test_ranks_are_those_of_the_mesh() -> None:
    step = step_of(CASES[1], ls.optim.SGD(0.1))
    ls.verify(step, mesh={"data": 4, "model": 2}, split=MLP_SPLIT)
    with pytest.raises(ls.Error, match="verify: ranks is 128, expected at most 64"):
        ls.verify(step, mesh={"data": 128})


def test_batch_statistics_of_ranks_cannot_be_compared() -> None:
    convnet = next(case for case in CASES if case.name == "convnet_bn")
    step = step_of(convnet, ls.optim.SGD(0.1), batch_statistics="rank")
    ls.verify(step, 1)
    with pytest.raises(
        ls.Error, match="batch statistics of batch_norm_training .* depend on the number of ranks by definition"
    ):
        ls.verify(step, 2)


def test_an_error_counts_virtual_ranks() -> None:
    step = step_of(CASES[1], ls.optim.SGD(0.1))
    with pytest.raises(ls.Error, match="virtual_ranks=16, each of which counts as a rank: .*not a multiple of 16"):
        ls.verify(step, 2, virtual_ranks=16)


def test_a_gradient_of_zeros_on_the_int8_wire() -> None:
    """A bias before batch normalisation has the gradient zero."""
    convnet = next(case for case in CASES if case.name == "convnet_bn")
    ls.verify(step_of(convnet, ls.optim.SGD(0.1)), 2, wire="int8")


def test_options_of_a_machine_are_none_of_verify() -> None:
    with pytest.raises(TypeError, match="threads"):
        ls.verify(step_of(CASES[1], ls.optim.SGD(0.1)), 2, threads=2)


# --- The command ------------------------------------------------------------------------------------------------------


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "lockstep", "verify", *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_the_command_makes_a_step_of_a_model() -> None:
    done = command(CASES[1].model, "--dims", "batch=8", "--ranks", "1,4", "--strategy", "wire=bf16")
    assert done.returncode == 0, done.stderr
    assert re.sub(r"\d+\.\d s", "… s", done.stdout).splitlines() == [
        f"{CASES[1].model}: a step that trains it with AdamW and the mean squared error of logits",
        "1 rank: equal to one rank (… s)",
        "4 ranks: equal to one rank (… s)",
        "assumed: adam means its decomposition",
    ]


def test_the_command_reads_graphs(tmp_path: Path) -> None:
    step_of(CASES[1], ls.optim.SGD(0.1)).save(tmp_path / "step.graph")
    done = command(tmp_path / "step.graph")
    assert done.returncode == 0, done.stderr
    assert "2 ranks: equal to one rank" in done.stdout and "4 ranks: equal to one rank" in done.stdout
    wrong = command(tmp_path / "step.graph", "--ranks", "3")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith(f"lockstep verify: {tmp_path}/step.graph: @mlp, on 3 ranks: pass distribute: ")
    meshed = command(tmp_path / "step.graph", "--strategy", "mesh={data=8}")
    assert "8 ranks: equal to one rank" in meshed.stdout and "2 ranks" not in meshed.stdout, meshed.stderr
    none = command(CASES[1].model, "--ranks", "0")
    assert none.stderr == "lockstep verify: --ranks is 0, expected at least 1\n"
    unnamed = command(CASES[1].model)
    assert "as in dims={" in unnamed.stderr and unnamed.stderr.endswith("(dims are --dims batch=8,…)\n")
    dims = command(tmp_path / "step.graph", "--dims", "batch=4")
    assert dims.returncode == 1 and "whose dimensions are fixed" in dims.stderr


# --- Smaller dimensions -----------------------------------------------------------------------------------------------


def gpt(length: int, width: int) -> ls.Graph:
    model = importlib.import_module("language.model").gpt(layers=2, width=width, heads=8, length=length, dropout=0.0)
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.train_step(ls.load_onnx(model.SerializeToString(), {"batch": 16}), loss, ls.optim.AdamW(0.01))


def resnet() -> ls.Graph:
    model = importlib.import_module("imagenet.model").resnet(18, classes=100, size=64, width=16)
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.train_step(ls.load_onnx(model.SerializeToString(), {"batch": 32}), loss, ls.optim.SGD(0.1, momentum=0.9))


LARGE: dict[str, Callable[[], ls.Graph]] = {
    "lenet": lambda: ls.train_step(
        ls.load_onnx(EXAMPLES / "mnist/lenet.onnx", {"batch": 128}),
        ls.loss.softmax_cross_entropy("logits", "label"),
        ls.optim.Adam(0.01),
    ),
    "gpt": lambda: gpt(length=96, width=128),
    "resnet": resnet,
}
SMALLER = "what holds for smaller dimensions holds for those of the program: "


def smaller(assumptions: tuple[str, ...]) -> str:
    [text] = [each.removeprefix(SMALLER) for each in assumptions if each.startswith(SMALLER)]
    return text


@pytest.mark.parametrize("name", LARGE)
def test_dimensions_of_large_models_become_smaller(name: str) -> None:
    step = LARGE[name]()
    for ranks in (2, 4, 8):
        batch = {"lenet": 128, "gpt": 16, "resnet": 32}[name]
        assert f"{batch} -> {ranks} (dim 0 of " in smaller(ls.verify(step, ranks))
    weight = {"lenet": "fc1.weight", "gpt": "blocks.0.mlp.up.weight", "resnet": "fc.weight"}[name]
    assert smaller(ls.verify(step, 8, mesh={"data": 4, "model": 2}, split={weight: {"model": 0}}))


def test_splits_still_hold_for_smaller_dimensions() -> None:
    split = {"fc1.weight": {"model": 0}, "fc2.weight": {"model": 1}}
    assert "500 -> " in smaller(ls.verify(LARGE["lenet"](), 4, mesh={"data": 2, "model": 2}, split=split))
    with pytest.raises(ls.Error, match="axis model: .* cannot share dimension 0 evenly"):
        ls.verify(LARGE["lenet"](), 3, mesh={"data": 1, "model": 3}, split=split)


def test_dimensions_stay_without_shrink() -> None:
    wide = ls.parse(re.sub(r"\b4,", "8192,", STEP).replace("f32[3", "f32[64").replace(",3]", ",64]"))
    assert smaller(ls.verify(wide, 2)) == "64 -> 4 (dim 0 of w; dim 1 of x), 8192 -> 2 (dim 0 of x, t)"
    assert ls.verify(wide, 2, shrink=False) == ("sgd means its decomposition",)
    with pytest.raises(ls.Error, match="verify: shrink"):
        ls.verify(wide, 2, shrink="no")


def test_mistakes_are_found_with_smaller_dimensions() -> None:
    wide = re.sub(r"\b4,", "8192,", STEP).replace("f32[3", "f32[64").replace(",3]", ",64]")
    wrong = ls.parse(wide.replace("matmul %x, %dy", "matmul %x, %d"))
    with pytest.raises(ls.Error, match=r"by w are not its derivatives\nwith smaller dimensions: 64 -> 4 \(dim 0 of w"):
        ls.verify(wrong, 2)


def test_compilations_verify_large_programs() -> None:
    step = LARGE["lenet"]()

    def body(world: ls.Communicator) -> None:
        ls.compile(step, world=world, threads=1, verify=world.rank == 0)

    assert run_in_threads(2, body) == [None, None]


def test_the_command_says_what_became_smaller(tmp_path: Path) -> None:
    model = EXAMPLES / "mnist/lenet.onnx"
    done = command(model, "--dims", "batch=32", "--ranks", "2")
    assert done.returncode == 0, done.stderr
    assert f"assumed: {SMALLER}" in done.stdout and "32 -> 2 (dim 0 of image, target)" in done.stdout
    whole = command(model, "--dims", "batch=1", "--ranks", "1", "--no-shrink")
    assert whole.returncode == 0, whole.stderr
    assert SMALLER not in whole.stdout
