"""The programs of seeded_programs.py that are steps which are interpreted or run. They are compared with a step of another
recipe that must learn the same, with NumPy, or with finite differences of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from seeded_models import (
    CONVNET,
    FEW_OPS,
    LOSS,
    LOSSES,
    MLP,
    PROGRAMS,
    SGD,
    blocks_of,
    convnet,
    gpt,
    mlp,
    program,
    with_loss,
)

import lockstep as ls
from ranks import run_in_threads

# --- Steps that are interpreted --------------------------------------------------------------------------------------


def values_for(step: ls.Graph, seed: int = 3) -> dict[str, np.ndarray]:
    """Inputs and states by name; a state has the same values in all steps that have it."""
    values = {}
    for info in [*step.inputs, *step.states]:
        random = np.random.Generator(np.random.PCG64([seed, *info.name.encode()]))
        if info.name == "rows":
            values[info.name] = np.ones(info.shape, np.float32)
        elif info.dtype == "i64":
            values[info.name] = random.integers(1, 4, info.shape)
        elif info.name.endswith(("var", "_v", "scale", "%v")):
            values[info.name] = (0.5 + random.random(info.shape)).astype(np.float32)
        else:
            values[info.name] = random.standard_normal(info.shape).astype(np.float32) * 0.5
    return values


def interpreted(step: ls.Graph, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    names = {info.name for info in [*step.inputs, *step.states]} | set(step.settings)
    return ls.interpret(step, [{name: value for name, value in values.items() if name in names}])[0]


def expect(found: Any, wanted: Any, what: str, tolerance: float = 2e-3) -> None:
    wanted = np.asarray(wanted, np.float64)
    error = np.abs(np.asarray(found, np.float64) - wanted).max(initial=0)
    if not error <= tolerance * max(1e-3, np.abs(wanted).max(initial=0)):
        raise AssertionError(f"{what} differs by {error:.3g}")


def expect_same(found: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: float = 2e-3) -> None:
    for name, value in wanted.items():
        expect(found[name], value, name, tolerance)


def gradients_of(step: Callable[..., ls.Graph], **recipe: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values for a step, and its gradients by state."""
    shown = step(optimizer=None, **recipe)
    values = values_for(shown)
    results = interpreted(shown, values)
    return values, {name.removeprefix("grad/"): value for name, value in results.items() if name.startswith("grad/")}


def check_gradients(make: Callable[[], ls.Graph], changes: Mapping[str, Any] | None = None) -> None:
    """Compares gradients with finite differences of the loss."""
    step = make()
    values = values_for(step) | dict(changes or {})
    results = interpreted(step, values)
    for name in [name for name in results if name.startswith("grad/")]:
        state = name.removeprefix("grad/")
        random = np.random.Generator(np.random.PCG64([5, *state.encode()]))
        way = random.standard_normal(values[state].shape)
        h = 1e-3
        losses = []
        for sign in (1, -1):
            moved = (values[state] + sign * h * way).astype(np.float32)
            losses.append(float(interpreted(step, values | {state: moved})["loss"]))
        slope = (losses[0] - losses[1]) / (2 * h)
        found = float((results[name].astype(np.float64) * way).sum())
        if abs(found - slope) > 0.03 * max(abs(slope), float(np.abs(results[name] * way).sum()), 1e-2):
            raise AssertionError(f"{name} along a line is {found:.4g}, the loss has the slope {slope:.4g}")


def cross_entropies(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    return np.log(np.exp(x).sum(1)) - np.take_along_axis(x, labels[:, None], 1)[:, 0]


def loss_of(loss: ls.loss.Loss) -> tuple[float, np.ndarray, dict[str, Any]]:
    """The loss of a step, the logits of the model, and the values that it had."""
    step = with_loss(loss, keep_results=True)
    values = values_for(step)
    results = interpreted(step, values)
    return float(results["loss"]), results["logits"], values


@program("numbers/losses")
def check_losses() -> None:
    found, logits, values = loss_of(LOSS)
    each = cross_entropies(logits, values["label"])
    expect(found, each.mean(), "the mean")
    expect(loss_of(LOSSES["sum"])[0], each.sum(), "the sum")
    weights = np.array([1.0, 2.0, 3.0, 0.5, 0.25])[values["label"]]
    expect(loss_of(LOSSES["weights"])[0], (each * weights).sum() / weights.sum(), "the mean with class weights")
    counts = values["label"] != 2
    expect(loss_of(LOSSES["ignored"])[0], each[counts].mean(), "the mean without ignored labels")
    found, _, given = loss_of(LOSSES["samples"])
    expect(found, (each * given["w"]).sum() / given["w"].sum(), "the mean with sample weights")
    found, _, given = loss_of(LOSSES["squares"])
    squares = (logits - given["target"]) ** 2
    expect(found, squares.mean(), "the mean of squares")
    expect(loss_of(LOSSES["two"])[0], each.mean() + 0.5 * squares.mean(), "the sum of two losses")
    found, _, given = loss_of(LOSSES["squares of samples"])
    expect(found, (squares * given["w"][:, None]).sum() / given["w"].sum() / 5, "the mean of squares with weights")


@program("numbers/batchmean")
def check_batchmean() -> None:
    target = np.full((8, 5), 0.2, np.float32)
    step = with_loss(LOSSES["batchmean"], keep_results=True)
    results = interpreted(step, values_for(step) | {"target": target})
    terms = target * (np.log(target) - results["logits"])
    expect(results["loss"], terms.sum() / 8, "the mean over the batch")


@program("numbers/evaluation")
def check_evaluation() -> None:
    model = ls.load_onnx(MLP.model, dims={"batch": 8})
    two = LOSSES["weights"] + LOSSES["squares"]
    for uneven in (False, True):
        program = ls.evaluation(model, two, {}, keep_results=True, uneven=uneven)
        values = values_for(program)
        results = interpreted(program, values)
        each = cross_entropies(results["logits"], values["label"])
        weights = np.array([1.0, 2.0, 3.0, 0.5, 0.25])[values["label"]]
        squares = (results["logits"] - values["target"]) ** 2
        expect(results["loss/0/count"], weights.sum(), "the weight of the labels")
        expect(results["loss/1/count"], squares.size, "the number of squares")
        expect(results["loss"], (each * weights).sum() / weights.sum() + squares.mean(), "the loss")


def add_gradients() -> None:
    for name, loss in LOSSES.items():
        make = lambda loss=loss: with_loss(loss, optimizer=None)
        PROGRAMS[f"numbers/gradients/{name}"] = lambda make=make: check_gradients(make)
    PROGRAMS["numbers/gradients/mlp"] = lambda: check_gradients(lambda: mlp(optimizer=None))
    PROGRAMS["numbers/gradients/convnet"] = lambda: check_gradients(lambda: convnet(optimizer=None))
    PROGRAMS["numbers/gradients/uneven convnet"] = lambda: check_gradients(lambda: convnet(optimizer=None, uneven=True))


@program("numbers/sgd")
def check_sgd() -> None:
    values, gradients = gradients_of(mlp)
    after = interpreted(mlp(optimizer=ls.optim.SGD(0.25)), values)
    expect_same(after, {name: values[name] - 0.25 * gradient for name, gradient in gradients.items()})
    step = mlp(optimizer=ls.optim.SGD(0.25), groups={"*.bias": ls.optim.SGD(0.5)})
    rate = lambda name: 0.5 if name.endswith("bias") else 0.25
    wanted = {name: values[name] - rate(name) * gradient for name, gradient in gradients.items()}
    expect_same(interpreted(step, values), wanted)


@program("numbers/adam")
def check_adam() -> None:
    _, gradients = gradients_of(mlp)
    step = mlp(optimizer=ls.optim.Adam(0.1, epsilon=1e-3))
    values = values_for(step) | {"optimizer/step": np.int64(2)}
    after = interpreted(step, values)
    expect(after["optimizer/step"], 3, "the number of the step")
    for name, g in gradients.items():
        m = 0.9 * values[f"{name}/adam_m"] + 0.1 * g
        v = 0.999 * values[f"{name}/adam_v"] + 0.001 * g * g
        expect(after[f"{name}/adam_m"], m, f"{name}/adam_m")
        expect(after[f"{name}/adam_v"], v, f"{name}/adam_v")
        step_of_w = 0.1 * (m / (1 - 0.9**3)) / (np.sqrt(v / (1 - 0.999**3)) + 1e-3)
        expect(after[name] - values[name], -step_of_w, name, 1e-2)


@program("numbers/average")
def check_average() -> None:
    step = mlp(optimizer=ls.optim.SGD(0.25), average=ls.average.exponential(0.75))
    values = values_for(step)
    after = interpreted(step, values | {"averaging/weight": np.float64(0.25)})
    for name in gradients_of(mlp)[1]:
        expect(after[f"{name}/average"], 0.75 * values[f"{name}/average"] + 0.25 * after[name], name)


@program("numbers/clipping")
def check_clipping() -> None:
    values, gradients = gradients_of(mlp)
    norm = lambda x: np.sqrt((np.asarray(x, np.float64) ** 2).sum())
    whole = np.sqrt(sum(norm(each) ** 2 for each in gradients.values()))
    for share in (0.5, 2.0):
        limit = float(whole * share)
        after = interpreted(mlp(optimizer=ls.optim.SGD(1.0), clip=ls.clip.global_norm(limit)), values)
        expect(after["gradient_norm"], whole, "gradient_norm")
        expect_same(after, {n: values[n] - min(1, share) * g for n, g in gradients.items()})
    limit = float(np.median([norm(each) for each in gradients.values()]))
    after = interpreted(mlp(optimizer=ls.optim.SGD(1.0), clip=ls.clip.norm(limit)), values)
    changes = lambda: {name: values[name] - after[name] for name in gradients}
    expect_same(changes(), {name: g * min(1, limit / norm(g)) for name, g in gradients.items()})
    limit = float(np.median(np.abs(gradients["fc2.weight"])))
    after = interpreted(mlp(optimizer=ls.optim.SGD(1.0), clip=ls.clip.value(limit)), values)
    expect_same(changes(), {name: np.clip(g, -limit, limit) for name, g in gradients.items()})


def add_accumulated() -> None:
    """A step of micro-batches learns what a step of the whole batch does."""
    of_samples = lambda **recipe: with_loss(LOSSES["samples"], **recipe)
    two = lambda **recipe: with_loss(LOSSES["two"], **recipe)
    squares = ls.loss.mean_squared_error("y", "target")
    of_few_ops = {
        name: lambda text=text, **recipe: ls.train_step(ls.parse(text), squares, **recipe)
        for name, comment, text in blocks_of(FEW_OPS)
        if comment == "accumulated"
    }
    for name, make in ({"mlp": mlp, "samples": of_samples, "two": two, "gpt": gpt} | of_few_ops).items():

        def check(make: Callable[..., ls.Graph] = make) -> None:
            for number in (2, 4):
                recipe = {"optimizer": ls.optim.SGD(0.25), "clip": ls.clip.global_norm(0.1), "keep_results": True}
                one, cut = make(**recipe), make(accumulate=number, **recipe)
                values = values_for(one)
                expect_same(interpreted(cut, values), interpreted(one, values), 1e-2)

        PROGRAMS[f"numbers/accumulate/{name}"] = check


def add_uneven() -> None:
    """A step of some rows learns what a step of a smaller batch does."""
    of_samples = lambda batch, **recipe: ls.train_step(
        ls.load_onnx(MLP.model, dims={"batch": batch}), LOSSES["samples"], **recipe
    )
    of = lambda case: (
        lambda batch, **recipe: ls.train_step(ls.load_onnx(case.model, dims={"batch": batch}), LOSS, **recipe)
    )
    for name, make in {"mlp": of(MLP), "samples": of_samples, "convnet": of(CONVNET), "gpt": gpt}.items():

        def check(make: Callable[..., ls.Graph] = make, name: str = name) -> None:
            for accumulate in (1, 2) if name == "mlp" else (1,):
                padded = make(8, optimizer=ls.optim.SGD(0.25), uneven=True, accumulate=accumulate)
                values = values_for(padded)
                there = np.array([1, 0, 1, 1, 0, 1, 1, 0], np.float32)
                small = make(5, optimizer=ls.optim.SGD(0.25))
                of = lambda value, there=there: value[np.repeat(there, len(value) // 8) > 0]
                rows = {info.name: of(values[info.name]) for info in small.inputs}
                found = interpreted(padded, values | {"rows": there})
                expect(found["rows"], 5, "rows")
                expect_same(found, interpreted(small, values | rows), 1e-2)
                found = interpreted(padded, values | {"rows": 0 * there})
                expect_same(found, {info.name: values[info.name] for info in padded.states})

        PROGRAMS[f"numbers/uneven/{name}"] = check


@program("numbers/loss scaling")
def check_loss_scaling() -> None:
    step = mlp(optimizer=ls.optim.SGD(0.25), precision="f16")
    values = values_for(mlp(optimizer=ls.optim.SGD(0.25)))
    wanted = interpreted(mlp(optimizer=ls.optim.SGD(0.25)), values)
    scaled = values | {"loss_scale/scale": np.float32(1024), "loss_scale/good_steps": np.int64(1998)}
    found = interpreted(step, scaled)
    expect(found["loss_scale/good_steps"], 1999, "the number of good steps", 1e-6)
    expect_same(found, wanted | {"loss_scale/scale": 1024, "loss_scale/good_steps": 1999}, 2e-2)
    found = interpreted(step, scaled | {"loss_scale/good_steps": np.int64(1999)})
    expect_same(found, wanted | {"loss_scale/scale": 2048, "loss_scale/good_steps": 0}, 2e-2)
    # The gradients of the first layer overflow, those of the last one do not.
    large = scaled | {"fc3.weight": 2000 * values["fc3.weight"], "loss_scale/scale": np.float32(32768)}
    found = interpreted(step, large)
    expect(found["loss_scale/scale"], 16384, "the scale after an overflow")
    expect(found["loss_scale/good_steps"], 0, "the number of good steps after an overflow")
    expect_same(found, {name: value for name, value in large.items() if name.startswith("fc")})


LAYER = """graph @layer(%x: f32[8,4] split(0), state %w: f32[4,3]) -> (y: f32[8,3]) {
  %y = matmul %x, %w : f32[8,3]
  return %y
}"""


@program("numbers/infinite gradients")
def check_infinite_gradients() -> None:
    """A gradient that is infinite, and not NaN: a sum of large numbers of one sign."""
    loss = ls.loss.mean_squared_error("y", "target")
    step = ls.train_step(ls.parse(LAYER), loss, ls.optim.SGD(0.25), precision="f16")
    large = {"x": np.full((8, 4), 50, np.float32), "target": np.full((8, 3), -50, np.float32)}
    scaling = {"loss_scale/scale": np.float32(2**20), "loss_scale/good_steps": np.int64(5)}
    values = values_for(step) | large | scaling
    found = interpreted(step, values)
    expect(found["loss_scale/scale"], 2**19, "the scale after an overflow")
    expect(found["w"], values["w"], "the weights after an overflow")


_CHANNELS = ", ".join(f"state %{name}: f32[3]" for name in "sbmv")
NORMALISED = f"""graph @normalised(%x: f32[8,3,2] split(0), {_CHANNELS}) -> (y: f32[8,3,2]) {{
  %y = batch_norm_inference %x, %s, %b, %m, %v {{epsilon=1e-05, momentum=0.75}} : f32[8,3,2]
  return %y
}}"""


def normalised(**recipe: Any) -> ls.Graph:
    loss = ls.loss.mean_squared_error("y", "target")
    return ls.train_step(ls.parse(NORMALISED), loss, SGD, keep_results=True, **recipe)


def moments(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    means = np.mean([part.mean((0, 2)) for part in parts], 0)
    return means, np.mean([part.var((0, 2), ddof=1) for part in parts], 0)


@program("numbers/statistics")
def check_statistics() -> None:
    values = values_for(normalised())
    x = values["x"]
    wanted = (x - x.mean((0, 2), keepdims=True)) / np.sqrt(x.var((0, 2), keepdims=True) + 1e-5)
    spread = lambda name: values[name][None, :, None]
    for recipe, parts in (({}, [x]), ({"accumulate": 2}, [x[0::2], x[1::2]])):
        found = interpreted(normalised(**recipe), values)
        mean, variance = moments(parts)
        expect(found["m"], 0.75 * values["m"] + 0.25 * mean, "the running mean")
        expect(found["v"], 0.75 * values["v"] + 0.25 * variance, "the running variance")
        if not recipe:
            expect(found["y"], wanted * spread("s") + spread("b"), "the normalised values")


@program("numbers/statistics of ranks")
def check_statistics_of_ranks() -> None:
    step = normalised(batch_statistics="rank")
    values = values_for(step)
    halves = [slice(0, 4), slice(4, 8)]
    shares = [values | {info.name: values[info.name][half] for info in step.inputs} for half in halves]
    found = ls.interpret(ls.distribute(step, {"data": 2}), shares)
    mean, variance = moments([values["x"][half] for half in halves])
    for rank in found:
        expect(rank["m"], 0.75 * values["m"] + 0.25 * mean, "the running mean")
        expect(rank["v"], 0.75 * values["v"] + 0.25 * variance, "the running variance")


# --- Steps that run --------------------------------------------------------------------------------------------------


def add_residuals() -> None:
    """What int8 gradients lose is kept: a step's change and its rounding errors are the gradient and the old errors."""
    for name, recipe in {"": {}, "uneven": {"uneven": True}}.items():

        def check(recipe: dict[str, Any] = recipe) -> None:
            step = mlp(optimizer=ls.optim.SGD(1.0), **recipe)
            values = values_for(step)

            def body(world: ls.Communicator, wire: str | None) -> list[dict[str, np.ndarray]]:
                exe = ls.compile(step, world=world, threads=1, wire=wire)
                half = slice(4 * world.rank, 4 * world.rank + 4)
                given = {info.name: values[info.name][half] for info in step.inputs if info.name != "rows"}
                states = []
                for _ in range(2):
                    for name in list(exe.state):
                        if name in values and "residual" not in name:
                            exe.state[name] = values[name]
                    exe(**given)
                    states.append({name: np.array(exe.state[name]) for name in exe.state})
                return states

            exact = run_in_threads(2, lambda world: body(world, None))[0]
            ranks = run_in_threads(2, lambda world: body(world, "int8"))
            for result in [exact, *ranks]:
                if isinstance(result, Exception):
                    raise result
            # Gradients of uneven batches travel before they are divided by the number of rows.
            name, share = "fc2.weight", 1 / 8 if recipe else 1
            gradient = values[name] - exact[0][name]
            owed = np.zeros_like(gradient)
            for number in range(2):
                sent = values[name] - ranks[0][number][name]
                kept = share * sum(rank[number][f"{name}/residual/data"][0] for rank in ranks)
                expect(sent + kept, gradient + owed, f"the gradient of step {number + 1}", 1e-4)
                if not np.abs(kept).max() > 0:
                    raise AssertionError("no rounding error is kept")
                owed = kept

        PROGRAMS[f"numbers/int8/{name}"] = check


GATHERS = """mesh {data=2}
graph @gathers(%x: f32[3,8] split(1), %z: f32[2,4] split(1)) -> (y: f32[3,8], v: f32[2,4]) {
  %y = all_gather %x {axis=data, dim=1} : f32[3,8]
  %v = all_gather %z {axis=data, dim=1} : f32[2,4]
  return %y, %v
}"""


@program("numbers/gathers of columns")
def check_gathers_of_columns() -> None:
    """Slices that are not contiguous in memory travel alone."""
    graph = ls.parse(GATHERS)
    whole = values_for(graph)

    def body(world: ls.Communicator) -> Mapping[str, np.ndarray]:
        exe = ls.compile(graph, world=world, threads=1)
        part = lambda value: np.ascontiguousarray(np.split(value, 2, axis=1)[world.rank])
        return exe(**{name: part(value) for name, value in whole.items()})

    for found in run_in_threads(2, body):
        if isinstance(found, Exception):
            raise found
        expect_same(found, {"y": whole["x"], "v": whole["z"]})


PARTS = """mesh {data=2, model=2}
graph @parts(state %w: f32[8,3] split(0) split(0, model)) -> (y: f32[8,3] split(0) split(0, model)) {
  %y = neg %w : f32[8,3] split(0) split(0, model)
  return %y
}"""


@program("numbers/parts along two axes")
def check_parts_along_two_axes() -> None:
    """Ranks have slices of slices of a state."""
    graph = ls.parse(PARTS)
    whole = np.arange(24, dtype=np.float32).reshape(8, 3)

    def body(world: ls.Communicator) -> Mapping[str, np.ndarray]:
        exe = ls.compile(graph, world=world, mesh={"data": 2, "model": 2}, threads=1)
        exe.state["w"] = whole
        return exe()

    for rank, found in enumerate(run_in_threads(4, body)):
        if isinstance(found, Exception):
            raise found
        expect_same(found, {"y": -whole[2 * rank : 2 * rank + 2]})


def add_all() -> None:
    for add in (add_gradients, add_accumulated, add_uneven, add_residuals):
        add()
