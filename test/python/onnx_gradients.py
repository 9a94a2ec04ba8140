"""Gradients of ONNX's operators, compared with differences of ONNX's own reference evaluator.

    python test/python/onnx_gradients.py      # checks all operators and brings onnx_gradients.toml up to date
    python test/python/onnx_gradients.py Gemm # prints the findings for one

The differentiated function is the sum of an operator's float outputs, each element times a fixed random weight, on the
inputs of ONNX's node tests. Inputs are f64 where the operator takes f64; the reference always computes in f64, except
for the operators in REFERENCE_IN_F32. Lockstep and the reference are compared along single elements and random
directions. A point where the one-sided differences disagree is a kink or a jump: it is left out, and counted.
"""

from __future__ import annotations

import re
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import lockstep as ls
from lockstep import _lockstep
from onnx_gradient_cases import FLOATS, Case, cases, is_float, takes_f64, tamed, widen, with_loss

EXPECTED = Path(__file__).with_name("onnx_gradients.toml")

CHECKED, STEPS, NONE, FAILS = "checked", "piecewise constant", "not differentiable", "fails"

# Operators that the reference evaluator computes only in f32, so that differences need wide steps, and the reasons.
REFERENCE_IN_F32 = {
    "Erf": "it rounds to f32",
    "Gelu": "its Erf rounds to f32",
    "BitCast": "f64 has another width",
    "GridSample": "its positions are f32",
    "GroupNormalization": "its statistics are f32",
    "MeanVarianceNormalization": "its function adds an f32 constant",
    "LinearAttention": "its state is f32",
    "CausalConvWithState": "its activation is f32",
}

# The operator that the reference evaluator runs instead, and its first opset: it has no Scatter, and its Optional
# returns a list.
REFERENCE_OF_OTHER_NAME = {"Scatter": ("ScatterElements", 11), "Optional": ("Identity", 1)}

# The number of differentiated outputs, for operators with further float outputs.
OUTPUTS = {"BatchNormalization": 1}  # the others are running statistics

# Operators without cases in ONNX, because their outputs differ in each run.
AT_RANDOM = {"Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}

# Prefixes of the names of cases that cannot test derivatives, and the reasons.
CASES_LEFT_OUT = {
    "test_training_dropout": "random",
    "test_l1normalization": "the reference evaluator adds x, not |x|, and x is 0",
}


@dataclass
class Finding:
    """The comparison for one input of one case: the number of derivatives that agree, the number of points that are not
    smooth, and the largest derivative; or what is wrong.
    """

    case: str
    agree: int = 0
    skipped: int = 0
    largest: float = 0.0
    refused: str = ""
    wrong: str = ""
    unused: str = ""  # the reason why the case could not be compared


@dataclass
class Verdict:
    """The verdict on an operator: one of the four words above, and the reason."""

    kind: str
    reason: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def counts(self) -> str:
        agree, skipped = sum(each.agree for each in self.findings), sum(each.skipped for each in self.findings)
        return f"{agree} derivatives agree, {skipped} points are not smooth"


def operators() -> list[str]:
    """The operators of the default domain that can be imported, in any opset."""
    return sorted({name for name, _, _ in _lockstep._onnx_operators()[""]})


# The oracle


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with operators that the reference evaluator supports."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in changed.graph.node:
        name, opset = REFERENCE_OF_OTHER_NAME.get(node.op_type, (node.op_type, 1))
        node.op_type = name
        changed.opset_import[0].version = max(changed.opset_import[0].version, opset)
    return changed


class Differences:
    """Derivatives of the weighted sum, from differences of the reference evaluator."""

    def __init__(self, case: Case, in_f32: bool) -> None:
        self.step = 2.0**-7 if in_f32 else 2.0**-17
        self.epsilon = 2.0**-24 if in_f32 else 2.0**-53
        self.tolerance = 3e-2 if in_f32 else 1e-3  # largest disagreement of one-sided differences at a smooth point
        self.inputs = {
            name: x.astype(np.float64) if is_float(x) and not in_f32 else x for name, x in case.inputs.items()
        }
        model = renamed(case.reference or case.model)
        model = model if in_f32 else widen(model)
        self._evaluator = ReferenceEvaluator(model)
        outputs = OUTPUTS.get(case.model.graph.node[0].op_type, len(model.graph.output))
        self._names = [info.name for info in model.graph.output[:outputs]]
        random = np.random.Generator(np.random.PCG64(7))
        outputs = {name: np.asarray(y) for name, y in zip(self._names, self._run(self.inputs), strict=True)}
        self.weights = {name: random.normal(size=y.shape) for name, y in outputs.items() if is_float(y)}
        self.is_finite = all(np.all(np.isfinite(outputs[name])) for name in self.weights)
        self.value = self._sum(outputs) if self.weights else 0.0

    def _run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return self._evaluator.run(self._names, inputs)

    def _sum(self, outputs: dict[str, np.ndarray]) -> float:
        return float(sum(np.sum(np.float64(outputs[name]) * weight) for name, weight in self.weights.items()))

    def _at(self, name: str, value: np.ndarray) -> float:
        outputs = dict(zip(self._names, self._run({**self.inputs, name: value}), strict=True))
        if any(np.shape(outputs[each]) != weight.shape for each, weight in self.weights.items()):
            return float("nan")  # the input's value determines shapes
        return self._sum(outputs)

    def derivative(self, name: str, direction: np.ndarray) -> tuple[float, float]:
        """The derivative along a direction, and the disagreement of the one-sided differences."""
        x, h, here = self.inputs[name], self.step, self.value
        before, half, after = (self._at(name, (x + at * h * direction).astype(x.dtype)) for at in (-1, 0.5, 1))
        bend = (
            max(abs(after - 2 * here + before), 2 * abs(after - 2 * half + here)) / h
        )  # the second term finds odd jumps
        return (after - before) / (2 * h), bend


def directions(x: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """Every element of a small array; of a larger one some elements, and a dense direction."""
    random = np.random.Generator(np.random.PCG64(seed))
    for i in range(x.size) if x.size <= 12 else random.choice(x.size, 6, replace=False):
        one = np.zeros(x.size)
        one[i] = 1
        yield one.reshape(x.shape)
    if x.size > 12:
        yield random.normal(size=x.shape)


# The comparison


class Comparison:
    """Compares Lockstep with the differences on one case."""

    def __init__(self, case: Case, differences: Differences, is_wide: bool) -> None:
        self.case, self.differences = case, differences
        model = widen(case.model) if is_wide else case.model
        dtype = np.float64 if is_wide else None
        self.inputs = {name: x.astype(dtype) if dtype and is_float(x) else x for name, x in case.inputs.items()}
        self.is_wide = is_wide
        self.graph = self._load(with_loss(model, differences.weights))
        taken = {info.name for info in self.graph.inputs}
        self.names = [name for name, x in case.inputs.items() if is_float(x) and name in taken]

    def _load(self, model: onnx.ModelProto) -> ls.Graph:
        return ls.load_onnx(model, split={}, values=self.inputs)

    def run(self) -> list[Finding]:
        try:
            gradients = self._run(ls.gradients(self.graph, "oracle", self.names)) if self.names else {}
            return [self._compare(name, gradients[f"grad/{name}"]) for name in self.names]
        except ls.Error:
            return [self._alone(name) for name in self.names]

    def _run(self, graph: ls.Graph) -> dict[str, np.ndarray]:
        taken = {info.name for info in graph.inputs}
        results = ls.compile(graph)(**{name: x for name, x in self.inputs.items() if name in taken})
        found, expected = float(results["oracle"]), self.differences.value
        if abs(found - expected) > (1e-6 if self.is_wide else 1e-2) * (1 + self._magnitude()):
            raise AssertionError(f"the sum of outputs is {found}, of the reference {expected}")
        return results

    def _magnitude(self) -> float:
        return abs(self.differences.value) + sum(np.abs(each).sum() for each in self.differences.weights.values())

    def _alone(self, name: str) -> Finding:
        try:
            graph = ls.gradients(self.graph, "oracle", [name])
        except ls.Error as error:
            return self._refused(name, str(error))
        return self._compare(name, self._run(graph)[f"grad/{name}"])

    def _refused(self, name: str, message: str) -> Finding:
        """If Lockstep gives no gradient, the true gradient must be zero; otherwise the error is the finding."""
        zero = self._compare(name, np.zeros(self.inputs[name].shape))
        if "does not depend on" in message:
            return zero
        if "is zero everywhere" in message and not zero.wrong:
            self._check_zero_beside_a_line(name)
            return zero
        zero.refused, zero.wrong = message, ""
        return zero

    def _check_zero_beside_a_line(self, name: str) -> None:
        """Checks that a step function adds exactly zero to the gradient of another term, here a weighted sum of its
        input.
        """
        weight = np.random.Generator(np.random.PCG64(3)).normal(size=self.inputs[name].shape)
        model = widen(self.case.model) if self.is_wide else self.case.model
        graph = self._load(with_loss(model, {**self.differences.weights, name: weight}))
        graph = ls.gradients(graph, "oracle", [name])
        taken = {info.name for info in graph.inputs}
        results = ls.compile(graph)(**{each: x for each, x in self.inputs.items() if each in taken})
        np.testing.assert_array_equal(results[f"grad/{name}"], weight.astype(self.inputs[name].dtype))

    def _compare(self, name: str, gradient: np.ndarray) -> Finding:
        finding, points = Finding(f"{self.case.name}: {name}"), []
        for direction in directions(self.inputs[name], seed=len(name)):
            expected, bend = self.differences.derivative(name, direction)
            at = direction != 0  # the other elements may be infinite
            points.append((expected, bend, float(np.sum(np.float64(gradient)[at] * direction[at]))))
        smooth = [point for point in points if np.isfinite(point[0])]
        scale = max((abs(expected) for expected, _, _ in smooth), default=0.0)
        h, epsilon = self.differences.step, self.differences.epsilon
        noise = 8 * epsilon * self._magnitude() / h + (0 if self.is_wide else 1e-3 * scale)
        for expected, bend, found in points:
            if not bend <= self.differences.tolerance * scale + noise:
                finding.skipped += 1
                continue
            if not abs(found - expected) <= 4 * h * scale + bend + 8 * noise:
                finding.wrong = f"along a direction the derivative is {expected:.6g}, the gradient says {found:.6g}"
                continue
            finding.agree += 1
            finding.largest = max(finding.largest, abs(expected) if abs(expected) > 8 * noise else 0.0)
        return finding


def findings_of(case: Case, in_f32: bool) -> list[Finding]:
    """A finding for each float input whose value was not needed for the import; anything else that is wrong is one more
    finding.
    """
    try:
        differences = Differences(case, in_f32)
        if not differences.is_finite:
            case = replace(case, inputs={name: tamed(x) for name, x in case.inputs.items()})
            differences = Differences(case, in_f32)
    except Exception as error:  # noqa: BLE001  the reference evaluator raises any exception of its NumPy code
        return [Finding(case.name, unused=f"the reference evaluator: {short(str(error))}")]
    if not differences.weights:
        return []
    if not differences.is_finite:
        return [Finding(case.name, unused="an output is not finite")]
    try:
        return Comparison(case, differences, takes_f64(case.model) and not in_f32).run()
    except ls.Error as error:
        return [Finding(case.name, unused=f"not imported: {error}")]
    except AssertionError as error:
        return [Finding(case.name, wrong=str(error))]


def examine(op: str) -> Verdict:
    """The verdict on an operator, over all of its cases."""
    if op in AT_RANDOM:
        return Verdict(NONE, "its random numbers have no gradient")
    found = []
    for case in cases().get(op, []):
        is_coarse = op in REFERENCE_IN_F32 and any(is_float(x) and x.itemsize < 4 for x in case.inputs.values())
        if not is_coarse and not case.name.startswith(tuple(CASES_LEFT_OUT)):
            found += findings_of(case, op in REFERENCE_IN_F32)
    kind, reason = judge(found) if cases().get(op) else (FAILS, "there is no case: MODELS takes one")
    return Verdict(kind, reason or (without_floats(op) if kind == NONE else ""), found)


def without_floats(op: str) -> str:
    """The reason why there is nothing to compare."""
    if not any(is_float(x) for case in cases().get(op, []) for x in case.inputs.values()):
        return "it takes no floats"
    kinds = {info.type.tensor_type.elem_type for case in cases().get(op, []) for info in case.model.graph.output}
    if not kinds & set(FLOATS):
        return "it returns no floats"
    return "its float inputs must be known at import"


def judge(found: list[Finding]) -> tuple[str, str]:
    wrong = [f"{each.case}: {each.wrong}" for each in found if each.wrong]
    refused = [each.refused for each in found if each.refused]
    unused = [each.unused for each in found if each.unused]
    if wrong:
        return FAILS, wrong[0]
    if any(each.largest > 0 for each in found if not each.refused):
        return (FAILS, refused[0]) if refused else (CHECKED, "")
    if refused:
        return NONE, refused[0]
    if any(each.agree for each in found):
        return STEPS, ""
    if any(each.skipped for each in found):
        return FAILS, "no point is smooth"
    return (FAILS, unused[0]) if unused else (NONE, "")


# The list


@dataclass
class Expected:
    """The contents of onnx_gradients.toml."""

    checked: set[str]
    steps: set[str]
    none: dict[str, str]
    fails: dict[str, str]

    def kind_of(self, op: str) -> tuple[str, str]:
        if op in self.checked:
            return CHECKED, ""
        if op in self.steps:
            return STEPS, ""
        if op in self.none:
            return NONE, self.none[op]
        return (FAILS, self.fails[op]) if op in self.fails else ("not in the list", "")


def expected() -> Expected:
    lists = tomllib.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    reasons = {kind: lists.get(kind, {}) for kind in ("not_differentiable", "fails")}
    by_op = {kind: {op: why for why, ops in groups.items() for op in ops} for kind, groups in reasons.items()}
    return Expected(
        set(lists.get("checked", [])),
        set(lists.get("piecewise_constant", [])),
        by_op["not_differentiable"],
        by_op["fails"],
    )


def short(reason: str) -> str:
    """The text of an error, without the parts that differ from case to case."""
    text = re.sub(r"<model>: |pass \w+: |, at onnx:.*$| ?\(at onnx:[^)]*\)", "", reason.splitlines()[0])
    return text.replace('"', "'")[:160]


def write(verdicts: dict[str, Verdict]) -> None:
    known = expected()
    lines = ["# Gradients of ONNX's operators. onnx_gradients.py updates the list; reasons are written by hand.\n"]
    for key, kind in (("checked", CHECKED), ("piecewise_constant", STEPS)):
        lines.append(listed(key, [op for op, verdict in verdicts.items() if verdict.kind == kind]))
    for key, kind, reasons in (("not_differentiable", NONE, known.none), ("fails", FAILS, known.fails)):
        groups: dict[str, list[str]] = {}
        for op, verdict in verdicts.items():
            if verdict.kind == kind:
                groups.setdefault(reasons.get(op) or short(verdict.reason), []).append(op)
        lines.append(f"[{key}]")
        lines += [listed(f'"{reason}"', ops) for reason, ops in sorted(groups.items())] or [""]
    EXPECTED.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def listed(key: str, ops: list[str]) -> str:
    return f"{key} = [\n" + "".join(f'  "{op}",\n' for op in sorted(ops)) + "]\n"


def main() -> int:
    chosen = sys.argv[1:]
    verdicts = {}
    for op in chosen or operators():
        verdict = verdicts[op] = examine(op)
        print(f"{op}: {verdict.kind}; {verdict.counts}{'; ' + verdict.reason if verdict.reason else ''}", flush=True)
        if chosen:
            for finding in verdict.findings:
                print("  ", finding)
    if not chosen:
        write(verdicts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
