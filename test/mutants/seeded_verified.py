"""The programs of seeded_programs.py that `lockstep.verify` compares with one rank, or with themselves if they are placed
already. It also checks the gradients of training steps.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from seeded_models import FEW_OPS, LOSSES, MLP, PROGRAMS, SGD, blocks_of, convnet, gpt, mlp, with_loss

import lockstep as ls
from cases import MLP_SPLIT
from test_verify import OPTIONS, RECIPES

TWO = {"data": 2, "model": 2}
EACH_SPLIT = Path(__file__).with_name("seeded_ops.ir")


def add_verified(name: str, make: Callable[[], ls.Graph], ranks: int, **options: Any) -> None:
    PROGRAMS[name] = lambda: ls.verify(make(), ranks, **options)


# --- Training steps on several ranks ---------------------------------------------------------------------------------

MORE_RECIPES: dict[str, dict[str, Any]] = {
    "clip_norm": {"clip": ls.clip.norm(1.0)},
    "clip_value": {"clip": ls.clip.value(1.0)},
    "lars": {"optimizer": ls.optim.LARS(0.01)},
    "adafactor": {"optimizer": ls.optim.Adafactor(0.01)},
    "average": {"average": ls.average.exponential(0.9)},
    "no_update": {"optimizer": None},
    "keep_results": {"keep_results": True},
    "uneven_accumulate": {"uneven": True, "accumulate": 2},
    "f16_accumulate": {"precision": "f16", "accumulate": 2},
}


def add_recipes() -> None:
    for name, recipe in (RECIPES | MORE_RECIPES).items():
        add_verified(f"mlp/{name}", lambda recipe=recipe: mlp(**recipe), 2)
        add_verified(f"mlp/{name}/sharded", lambda recipe=recipe: mlp(**recipe), 2, shard_optimizer=True)
    for name, recipe in RECIPES.items():
        if name != "accumulate":
            add_verified(f"convnet/{name}", lambda recipe=recipe: convnet(**recipe), 2)
    for name, options in OPTIONS.items():
        for ranks in (2, 4):
            add_verified(f"mlp/{name}/{ranks}", mlp, ranks, **options)
        add_verified(f"convnet/{name}/2", convnet, 2, **options)
    for name, step in {"adam": {"optimizer": ls.optim.Adam(0.01)}, "lamb": RECIPES["lamb"]}.items():
        for options in ({}, {"shard_optimizer": True}, {"factors": True}, {"wire": "bf16"}, {"bucket_bytes": 64}):
            of = "+".join(options) or "default"
            add_verified(f"mlp/{name}/2x2/{of}", lambda step=step: mlp(**step), 4, mesh=TWO, split=MLP_SPLIT, **options)
    for name in ("uneven", "f16", "accumulate"):
        add_verified(f"mlp/{name}/int8", lambda name=name: mlp(**RECIPES[name]), 2, wire="int8")
    add_verified("mlp/clipped/2x2", lambda: mlp(**RECIPES["clipped"]), 4, mesh=TWO, split=MLP_SPLIT)
    add_verified("mlp/f16/2x2", lambda: mlp(**RECIPES["f16"]), 4, mesh=TWO, split=MLP_SPLIT)
    all_columns = {"fc1.weight": {"model": 1}, "fc2.weight": {"model": 0}, "fc3.weight": {"model": 1}}
    add_verified("mlp/columns", mlp, 4, mesh=TWO, split=all_columns)
    add_verified("mlp/inputs", mlp, 2, mesh={"data": 1, "model": 2}, split={"x": {"model": 1}})
    adafactor = ls.optim.Adafactor(0.01)
    add_verified("mlp/adafactor/2x2", lambda: mlp(optimizer=adafactor), 4, mesh=TWO, split=MLP_SPLIT)
    channels = {"conv1.weight": {"model": 0}, "conv2.weight": {"model": 0}}
    add_verified("convnet/channels", convnet, 2, mesh={"data": 1, "model": 2}, split=channels)
    add_verified("convnet/accumulate/rank", lambda: convnet(accumulate=2, optimizer=SGD), 1)
    add_verified("gpt", gpt, 2)
    add_verified("gpt/adam/sharded", lambda: gpt(optimizer=ls.optim.Adam(0.01)), 2, shard_optimizer=True)
    add_verified("gpt/factors", gpt, 2, factors=True)
    heads = {"blocks.0.qkv.weight": {"model": 0}, "tokens.weight": {"model": 1}}
    add_verified("gpt/heads", gpt, 2, mesh={"data": 1, "model": 2}, split=heads)
    add_verified("gpt/sequence", gpt, 2, mesh={"data": 1, "model": 2}, split={"x": {"model": 1}})
    add_verified("gpt/uneven", lambda: gpt(uneven=True), 2)
    for name, recipe in {"": {}, "clipped": RECIPES["clipped"], "adam": RECIPES["adam"]}.items():
        for mesh in ({"stage": 2}, {"stage": 3}, {"data": 2, "stage": 2}):
            step = {**recipe, "accumulate": 2 if len(mesh) > 1 else 4}
            ranks = int(np.prod(list(mesh.values())))
            along = "+".join(f"{axis}={size}" for axis, size in mesh.items())
            add_verified(f"mlp/{name or 'sgd'}/{along}", lambda step=step: mlp(**step), ranks, mesh=mesh)
            as_it_is = {"mesh": mesh, "optimize": False}  # values that do not change stay in the loop
            add_verified(f"mlp/{name or 'sgd'}/{along}/as it is", lambda step=step: mlp(**step), ranks, **as_it_is)
    add_verified("mlp/one micro-batch/stages", mlp, 2, mesh={"stage": 2})
    add_verified("gpt/stages", lambda: gpt(accumulate=2), 2, mesh={"stage": 2})


def add_servers() -> None:
    for name, recipe in {"sgd": {}, "adam": RECIPES["adam"], "lion": {"optimizer": ls.optim.Lion(0.01)}}.items():
        add_verified(f"servers/{name}", lambda recipe=recipe: mlp(**recipe), 2, strategy="parameter_server")


def add_losses() -> None:
    for name, loss in LOSSES.items():
        add_verified(f"loss/{name}", lambda loss=loss: with_loss(loss), 2)
    model = lambda: ls.load_onnx(MLP.model, dims={"batch": 8})
    add_verified("evaluation", lambda: ls.evaluation(model(), LOSSES["ignored"]), 2)


def expect_error(make: Callable[[], ls.Graph], message: str, ranks: int, **options: Any) -> None:
    """A wrong program must be refused, which is how mistakes of passes are found."""
    try:
        ls.verify(make(), ranks, **options)
    except ls.Error as error:
        if message in str(error):
            return
    raise AssertionError(f"the error is not: {message}")


def add_few_ops() -> None:
    """Programs that are to be placed as their comment says, and those that are placed already."""
    loss = ls.loss.mean_squared_error("y", "target")
    for name, comment, text in blocks_of(FEW_OPS):
        if comment == "accumulated":
            continue
        make = lambda text=text, trained=comment == "trained": (
            ls.train_step(ls.parse(text), loss, SGD) if trained else ls.parse(text)
        )
        number, _, strategy = comment.partition(" ranks: ")
        if strategy:
            add_verified(f"ops/{name}", make, int(number), strategy=strategy)
        elif text.startswith("mesh"):
            mesh = {axis: int(size) for axis, size in re.findall(r"(\w+)=(\d)", text.partition("\n")[0])}
            options = {"ranks": int(np.prod(list(mesh.values()))), "mesh": mesh, "replicated": True}
            if comment.startswith("refused: "):
                message = comment.removeprefix("refused: ")
                PROGRAMS[f"refused/{name}"] = lambda make=make, message=message, options=options: expect_error(
                    make, message, **options
                )
            else:
                add_verified(f"placed/{name}", make, **options)
        else:
            for ranks in (2,) if comment == "trained" else (2, 4):
                add_verified(f"ops/{name}/{ranks}", make, ranks)


# --- One op, with every split of its operands and results ------------------------------------------------------------

VALUE = re.compile(r"(state )?%?(\w+): (\w+)\[([\d,]*)\]")


def ways_of(value: re.Match[str], is_input: bool) -> list[str]:
    """The placements that a value may have along an axis of two ranks. An input may be the sum of two, or the larger."""
    extents = [int(extent) for extent in value[4].split(",") if extent]
    splits = [f"split({dim})" for dim, extent in enumerate(extents) if extent % 2 == 0]
    terms = ["sum", "max"] if is_input and value[3] == "f32" and not value[1] else []
    return splits + terms


def placed(text: str, ways: dict[str, str]) -> str:
    """The program with values placed as given. Results have other names than inputs."""
    header, _, body = text.partition("\n")
    for name, way in ways.items():
        pattern = rf"(?<!\w)(%?){name}: (\w+)\[([\d,]*)\]"
        if way.startswith("split"):
            header = re.sub(pattern, rf"\g<0> {way}", header)
            continue
        _, dtype, extents = re.search(pattern, header).groups()
        header = re.sub(pattern, rf"%{name}.terms: {dtype}[2,{extents}] split(0)".replace(",]", "]"), header)
        body = f"  %{name} = reduce_{way} %{name}.terms {{dims=[0]}} : {dtype}[{extents}]\n{body}"
    return f"{header}\n{body}"


def variants_along_one_axis(text: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Programs in which one or two values are not whole, for two ranks."""
    given, _, made = text.partition("\n")[0].partition(" -> ")
    ways = {value[2]: ways_of(value, True) for value in VALUE.finditer(given)}
    ways |= {value[2]: ways_of(value, False) for value in VALUE.finditer(made)}
    for number in (1, 2):
        for names in itertools.combinations(ways, number):
            for chosen in itertools.product(*(ways[name] for name in names)):
                yield placed(text, dict(zip(names, chosen, strict=True))), 2, {}


def variants_along_two_axes(text: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Programs in which one value is not whole along one axis, and an input is split along another, for four ranks."""
    given, _, made = text.partition("\n")[0].partition(" -> ")
    inputs = {value[2]: ways_of(value, True) for value in VALUE.finditer(given)}
    results = {value[2]: ways_of(value, False) for value in VALUE.finditer(made)}
    states = {value[2] for value in VALUE.finditer(given) if value[1]}
    for (name, ways), (other, others) in itertools.product((inputs | results).items(), inputs.items()):
        splits = [way for way in others if way.startswith("split")]
        for way, split in itertools.product(ways, splits):
            # No dimension of an input is split by two axes. Optimizer states are split as their variable is.
            if (name == other or {name, other} <= states) and (way == split or way in ("sum", "max")):
                continue
            yield placed(text, {name: way}), 4, {"mesh": TWO, "split": {other: {"model": int(split[6:-1])}}}


def verify_each(variants: Iterator[tuple[str, int, dict[str, Any]]], **same: Any) -> None:
    for text, ranks, own in variants:
        options = own | same
        try:
            ls.verify(ls.parse(text), ranks, replicated=True, **options)
        except ls.Error as error:
            raise ls.Error(f"{error} in {text} {options}") from None


def add_each_split() -> None:
    for name, comment, text in blocks_of(EACH_SPLIT):
        options = {"optimize": False} if comment == "as it is" else {}
        PROGRAMS[f"each/{name}"] = lambda text=text, options=options: verify_each(
            variants_along_one_axis(text), **options
        )
        PROGRAMS[f"each/{name}/2x2"] = lambda text=text, options=options: verify_each(
            variants_along_two_axes(text), **options
        )


def add_all() -> None:
    for add in (add_recipes, add_servers, add_losses, add_few_ops, add_each_split):
        add()
