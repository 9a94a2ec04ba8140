"""verify_hlo() and `lockstep verify BEFORE AFTER`: programs of XLA before and after its SPMD partitioner.

The pairs of programs are in test/hlo, as JAX made them. What instructions mean is compared with what XLA computed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from lockstep import _lockstep
from lockstep._hlo import exact, shardings, text
from lockstep._hlo.ops import RANDOM_FUNCTIONS
from lockstep._hlo.program import Program

HLO = Path(__file__).resolve().parent.parent / "hlo"
WRONG = {"reduced_embedding_2x2", "dynamic_update_slice_2"}  # bugs of XLA
PAIRS = sorted(path.with_name(path.name.removesuffix(".before.txt")) for path in HLO.glob("*/*.before.txt"))
ASSUMED = "instructions of XLA compute what they mean, without rounding"
TRIED = "outcomes of comparisons of floats, and integer inputs, are tried 8 times, not proved"


def file(pair: Path, when: str) -> Path:
    return pair.with_name(f"{pair.name}.{when}.txt")


def verify(pair: Path) -> tuple[str, ...]:
    return ls.verify_hlo(file(pair, "before"), file(pair, "after"))


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.name not in WRONG], ids=lambda pair: pair.name)
def test_programs_are_equal(pair: Path) -> None:
    assert verify(pair) == (ASSUMED, TRIED)


def test_there_are_programs() -> None:
    assert len(PAIRS) == 22


# --- Bugs of XLA ------------------------------------------------------------------------------------------------------


def test_a_gradient_that_is_sliced_before_it_is_summed() -> None:
    with pytest.raises(ls.Error) as error:  # openxla/xla#42481
        verify(HLO / "jax-0.12.0.1/reduced_embedding_2x2")
    message = str(error.value)
    assert (
        "differs on all 4 devices from that of one device; the first value that not all devices compute is %scatter-add."
        in message
    )
    assert re.search(r"each device computes\n    line \d+: %scatter = .*\n    line \d+: %dynamic-slice", message)


def test_an_update_with_a_start_that_is_clamped() -> None:
    with pytest.raises(ls.Error, match=r"differs on device 1 from .* is %dynamic_update_slice\.0, line 12"):
        verify(HLO / "jax-0.12.0.1/dynamic_update_slice_2")  # openxla/xla#49118


# --- Damaged programs -------------------------------------------------------------------------------------------------

DAMAGES = {
    "an all-reduce is missing": (
        "jax-0.10.0/mlp_data_4", r"all-reduce\((%dot\.\d+)\), .*", r"copy(\1)", "%dot_general"),
    "another group": (
        "jax-0.10.0/mlp_tensor_2x4", r"\{\{0,1,2,3\},\{4,5,6,7\}\}", "{{0,2,4,6},{1,3,5,7}}", "%dot_general"),
    "another axis": (
        "jax-0.12.0.1/layernorm_2x2", r"(replica_groups=mesh\['data'=2,'model'=2\]) {'model'}", r"\1 {'data'}", "%"),
    "a maximum for a sum": (
        "jax-0.10.0/mlp_data_4", r"(%region_\d\.\d+\.clone .*\n.*\n.*\n  ROOT .*) add\(", r"\1 maximum(", "%reduce_sum"),
    "another start of slices": (
        "jax-0.10.0/scatter_add_4", r"constant\({0, 4, 8, 12}\)", "constant({4, 0, 8, 12})", "%scatter-add"),
    "a neighbour in the other direction": (
        "jax-0.10.0/cnn_space_4", r"pairs=\{\{0,1\},\{1,2\},\{2,3\}\}", "pairs={{1,0},{2,1},{3,2}}", "%conv"),
    "a sum that includes padding": (
        "jax-0.10.0/uneven_2x2", r"constant\(9\)", "constant(10)", "%"),
    "another permutation": (
        "jax-0.10.0/shard_map_product_4", r"pairs=\{\{0,1\},\{1,2\}", "pairs={{0,2},{1,1}", ""),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_programs(tmp_path: Path, damage: str) -> None:
    pair, pattern, replacement, named = DAMAGES[damage]
    damaged, count = re.subn(pattern, replacement, file(HLO / pair, "after").read_text(), count=1)
    assert count == 1
    (tmp_path / "after.txt").write_text(damaged)
    with pytest.raises(ls.Error, match=r"result \d+, .*, of .*after\.txt differs on .*device") as error:
        ls.verify_hlo(file(HLO / pair, "before"), tmp_path / "after.txt")
    assert f"the first value that not all devices compute is {named}" in str(error.value) or not named


BRANCHES = """HloModule m, num_partitions=2
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
ENTRY %main (x: f32[4], t: DTYPE[]) -> f32[] {
  %x = f32[4] parameter(0), sharding={devices=[2]<=[2]}
  %t = DTYPE[] parameter(1)
  %zero = f32[] constant(0)
  %local = f32[] reduce(%x, %zero), dimensions={0}, to_apply=%sum
  %total = f32[] copy(%local)
  %limit = DTYPE[] constant(LIMIT)
  %p = pred[] compare(%t, %limit), direction=WAY
  %n = f32[] negate(%local)
  ROOT %y = f32[] select(%p, %n, %total)
}
"""
SUMS = "all-reduce(%local), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%sum"


@pytest.mark.parametrize("way", ["LT", "GT"])
@pytest.mark.parametrize(
    ("dtype", "limit"), [("f32", 0), ("f32", 1), ("s32", 3), ("s32", 100), ("s32", 0), ("s32", -20), ("s8", 100)]
)
def test_both_branches_are_compared(tmp_path: Path, dtype: str, limit: int, way: str) -> None:
    """One branch is of a device's own sum, the other one of that of all."""
    program = BRANCHES.replace("DTYPE", dtype).replace("LIMIT", str(limit)).replace("WAY", way)
    (tmp_path / "before.txt").write_text(program)
    local = program.replace("f32[4]", "f32[2]").replace("copy(%local)", SUMS)
    (tmp_path / "after.txt").write_text(local)
    with pytest.raises(ls.Error, match=r"that not all devices compute is %y, line 16\n.*\n    line \d+: "):
        ls.verify_hlo(tmp_path / "before.txt", tmp_path / "after.txt")
    (tmp_path / "after.txt").write_text(local.replace("negate(%local)", "negate(%total)"))
    assert ls.verify_hlo(tmp_path / "before.txt", tmp_path / "after.txt") == (ASSUMED, TRIED)


def test_each_all_reduce_is_needed(tmp_path: Path) -> None:
    """Without any one of them, results differ."""
    removed = 0
    for pair in (HLO / "jax-0.10.0/mlp_tensor_2x4", HLO / "jax-0.10.0/uneven_2x2", HLO / "jax-0.12.0.1/layernorm_2x2",
                 HLO / "jax-0.12.0.1/attention_sequence_4"):  # fmt: skip
        after = file(pair, "after").read_text()
        for match in re.finditer(r"= \w+\[[\d,]*\]\S* (all-reduce\((.*?)\), .*)", after):
            start, end = match.span(1)
            (tmp_path / "after.txt").write_text(f"{after[:start]}copy({match[2]}){after[end:]}")
            with pytest.raises(ls.Error, match="differs on"):
                ls.verify_hlo(file(pair, "before"), tmp_path / "after.txt")
            removed += 1
    assert removed > 20


# --- What instructions mean -------------------------------------------------------------------------------------------

OPERATIONS = json.loads((HLO / "operations.json").read_text())


def array_of(values: object, type: text.Array) -> np.ndarray:
    numbers = np.asarray(values).reshape(type.dims)
    dtype = exact.DTYPES[type.dtype]
    return exact.of_floats(numbers.astype(np.float64), "f32") if dtype == exact.EXACT else numbers.astype(dtype)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_xla(tmp_path: Path, name: str) -> None:
    row = OPERATIONS[name]
    (tmp_path / "hlo.txt").write_text(row["hlo"])
    module = text.read(str(tmp_path / "hlo.txt"))
    inputs = [[array_of(x, i.array)] for x, i in zip(row["inputs"], module.entry.parameters, strict=True)]
    results = Program(module).run(inputs, 1)[0]
    types = module.entry.by_name[module.entry.root].arrays
    for result, values, type in zip(results, row["results"], types, strict=True):  # type: ignore[call-overload]
        assert result.shape == type.dims and exact.equal(result, array_of(values, type)).all()


def test_a_bitcast_is_the_same_memory(tmp_path: Path) -> None:
    hlo = """ENTRY %main (x: s32[2,3]) -> s32[3,2] {
  %x = s32[2,3]{1,0} parameter(0)
  %y = s32[3,2]{0,1} bitcast(%x)
  ROOT %z = s32[6]{0} bitcast(%y)
}
"""
    (tmp_path / "hlo.txt").write_text(hlo)
    program, x = Program(text.read(str(tmp_path / "hlo.txt"))), np.arange(6, dtype=np.int32).reshape(2, 3)
    assert np.array_equal(program.run([[x]], 1)[0], x.reshape(-1))  # type: ignore[arg-type]
    assert np.array_equal(program.values["y"][0], x.T)  # type: ignore[arg-type]


def run(folder: Path, op: str, z: str, x: str, *inputs: object, y: str = "s32[]") -> np.ndarray:
    """The result of an instruction, of the type z, of the inputs x and y."""
    parameters = f"  %x = {x} parameter(0)\n  %y = {y} parameter(1)\n"
    (folder / "hlo.txt").write_text(f"ENTRY %main (x: {x}, y: {y}) -> {z} {{\n{parameters}  ROOT %z = {z} {op}\n}}\n")
    module = text.read(str(folder / "hlo.txt"))
    arrays = [[array_of(each, i.array)] for each, i in zip((*inputs, 0)[:2], module.entry.parameters, strict=True)]
    return Program(module).run(arrays, 1)[0]  # type: ignore[return-value]


CONVOLUTION = "convolution(%x, %x), window={size=2}, dim_labels=bf0_oi0->bf0"
DOT = "dot(%x, %y), lhs_contracting_dims={0}, rhs_contracting_dims={0}"


@pytest.mark.parametrize(
    ("op", "z", "x", "y", "inputs", "expected"),
    [
        (CONVOLUTION, "s32[1,1,1]", "s8[1,1,2]", "s32[]", ([100, 100],), [20000]),
        (CONVOLUTION, "f32[1,1,1]", "s8[1,1,2]", "s32[]", ([100, 100],), [20000]),
        (DOT, "s32[]", "s8[2]", "s8[2]", ([100, 100], [100, 100]), 20000),
        (DOT, "f32[]", "s8[2]", "s8[2]", ([100, 100], [100, 100]), 20000),
        (DOT, "f32[]", "f32[2]", "s8[2]", ([0.5, 3], [100, -2]), 44),
        ("convert(%x)", "s8[4]", "f32[4]", "s32[]", ([300, -300, 127, -5],), [127, -128, 127, -5]),
        ("convert(%x)", "u8[3]", "f32[3]", "s32[]", ([300, -5, 200],), [255, 0, 200]),
        ("convert(%x)", "u64[2]", "f32[2]", "s32[]", ([300, -5],), [300, 0]),
        ("divide(%x, %y)", "s32[7]", "s32[7]", "s32[7]",
         ([-(2**31), -(2**31), -(2**31), 7, -7, -8, 7], [2, -1, -(2**31), -2, 2, 2, 0]),
         [-(2**30), -(2**31), 1, -3, -3, -4, -1]),
        ("divide(%x, %y)", "u32[2]", "u32[2]", "u32[2]", ([7, 7], [2, 0]), [3, 2**32 - 1]),
        ("power(%x, %y)", "s32[3]", "s32[3]", "s32[3]", ([2, -3, 5], [3, 2, 0]), [8, 9, 1]),
        ("is-finite(%x)", "pred[4]", "f32[4]", "s32[]", ([1, np.inf, -np.inf, np.nan],), [1, 0, 0, 0]),
    ],
)  # fmt: skip
def test_results_are_those_of_integers(
    tmp_path: Path, op: str, z: str, x: str, y: str, inputs: tuple[object, ...], expected: object
) -> None:
    found = run(tmp_path, op, z, x, *inputs, y=y)
    type = text.Array(z.split("[")[0], found.shape)
    assert exact.equal(found, array_of(expected, type)).all()


@pytest.mark.parametrize(
    ("op", "equal"),
    [
        ("logistic(%x)", "negate(%x); exponential(%0); add(%one, %1); divide(%one, %2)"),
        ("logistic(%x)", "negate(%x); logistic(%0); subtract(%one, %1)"),
        ("exponential-minus-one(%x)", "exponential(%x); subtract(%0, %one)"),
        ("log-plus-one(%x)", "add(%x, %one); log(%0)"),
        ("power(%x, %two)", "multiply(%x, %x)"),
        ("exponential(%x)", "divide(%x, %two); exponential(%0); power(%1, %two)"),
        ("reduce-precision(%x), exponent_bits=8, mantissa_bits=7", "copy(%x)"),
    ],
)
def test_laws_of_functions(tmp_path: Path, op: str, equal: str) -> None:
    lines = [f"  %{k} = f32[3] {each}\n" for k, each in enumerate(equal.split("; "))]
    constants = "  %one = f32[3] constant({1,1,1})\n  %two = f32[3] constant({2,2,2})\n"
    (tmp_path / "hlo.txt").write_text(
        f"ENTRY %main (x: f32[3]) -> (f32[3], f32[3]) {{\n  %x = f32[3] parameter(0)\n{constants}{''.join(lines)}"
        f"  %y = f32[3] {op}\n  ROOT %z = (f32[3], f32[3]) tuple(%y, %{len(lines) - 1})\n}}\n"
    )
    x = exact.draw(text.Array("f32", (3,)), 0, 0, 1)
    y, z = Program(text.read(str(tmp_path / "hlo.txt"))).run([[x]], 1)[0]  # type: ignore[attr-defined]
    assert exact.equal(y, z).all() and not exact.is_nan(y).any()


def test_other_functions_follow_from_their_operands(tmp_path: Path) -> None:
    """Equal operands have equal results; other operands, and other functions, have others."""
    x, y = [2.5, 2.5, 0.25, 7], [0.75, 0.75, 3, 0.75]
    rows = []
    for name in RANDOM_FUNCTIONS:
        op = f"{name}(%x, %y)" if name in ("atan2", "remainder") else f"{name}(%x)"
        row = run(tmp_path, op, "f32[4]", "f32[4]", x, y, y="f32[4]")
        assert exact.equal(row[0], row[1]).all() and not exact.is_nan(row).any()
        rows += [row[1:]]
    numbers = np.concatenate(rows)
    assert exact.equal(numbers[:, None], numbers).sum() == len(numbers)


def test_arrays_of_exact_numbers_have_the_size_that_is_needed() -> None:
    bytes_of = lambda count: np.zeros(count * exact.EXACT.itemsize, np.uint8)
    for call in (
        lambda: _lockstep._exact_multiply(bytes_of(6), np.zeros(6, np.uint8), 1, 2, 3, 2, bytes_of(4)),
        lambda: _lockstep._exact_multiply(bytes_of(6), bytes_of(6), 1, 2, 3, 2, bytes_of(3)),
        lambda: _lockstep._exact_elementwise("add", [bytes_of(2), bytes_of(1)], bytes_of(2)),
        lambda: _lockstep._exact_compare(bytes_of(2), bytes_of(1), np.zeros(2, np.int8)),
        lambda: _lockstep._exact_to_integers(bytes_of(1), 0, np.zeros(2, np.int64)),
        lambda: _lockstep._exact_of_integers(np.zeros(2, np.int64), bytes_of(1)),
        lambda: _lockstep._exact_of_floats(np.zeros(2), "f32", bytes_of(1)),
    ):
        with pytest.raises(ls.Error, match=r"an array of exact numbers has \d+ bytes, not \d times \d+"):
            call()
    with pytest.raises(ls.Error, match="add has 1 operands, not 2"):
        _lockstep._exact_elementwise("add", [bytes_of(2)], bytes_of(2))


NESTED_LOOPS = """HloModule m
%below (c: (s32[], s32[])) -> pred[] {
  %c = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] get-tuple-element(%c), index=1
  ROOT %p = pred[] compare(%i, %n), direction=LT
}
%next (s: (s32[], s32[])) -> (s32[], s32[]) {
  %s = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  ROOT %t = (s32[], s32[]) tuple(%j, %n)
}
%loop (s: (s32[], s32[])) -> (s32[], s32[]) {
  %s = (s32[], s32[]) parameter(0)
  %n = s32[] get-tuple-element(%s), index=1
  %zero = s32[] constant(0)
  %start = (s32[], s32[]) tuple(%zero, %n)
  %inner = (s32[], s32[]) while(%start), condition=%below, body=%next
  ROOT %t = (s32[], s32[]) call(%s), to_apply=%next
}
ENTRY %main (n: s32[]) -> (s32[], s32[]) {
  %n = s32[] parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], s32[]) tuple(%zero, %n)
  ROOT %outer = (s32[], s32[]) while(%start), condition=%below, body=%loop
}
"""


def test_all_loops_share_their_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep._hlo.program._MOST_TURNS", 110)
    (tmp_path / "hlo.txt").write_text(NESTED_LOOPS)
    program = Program(text.read(str(tmp_path / "hlo.txt")))
    for _ in range(2):  # each run has 110
        assert program.run([[np.array(10, np.int32)]], 1)[0] == (10, 10)
    with pytest.raises(ls.Error, match=r"21: while %inner has not ended after 110 turns of all loops"):
        program.run([[np.array(11, np.int32)]], 1)


def test_values_of_all_devices_are_checked(tmp_path: Path) -> None:
    hlo = """HloModule m, num_partitions=2
ENTRY %main (x: f32[3]) -> f32[2] {
  %x = f32[3]{0} parameter(0), sharding={devices=[2]<=[2]}
  ROOT %y = f32[2]{0} custom-call(%x), custom_call_target="SPMDFullToShardShape"
}
"""
    (tmp_path / "hlo.txt").write_text(hlo)
    x = exact.draw(text.Array("f32", (3,)), 0, 0, 1)
    with pytest.raises(ls.Error, match=r"custom-call %y has the shape \(2,\), but its operands give \(1,\)"):
        Program(text.read(str(tmp_path / "hlo.txt"))).run([[x, x]], 2)


def test_commas_in_brackets_and_strings() -> None:
    parts = ["f(a, b)", r'metadata={op_name="x\"), {" c=1}', 'y="]\\\\"', "z"]
    assert text.split(", ".join(parts)) == parts


COLLECTIVES = """HloModule m, num_partitions=4
%sum (a: s32[], b: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = s32[] add(%a, %b)
}
ENTRY %main (x: s32[4]) -> s32[] {
  %x = s32[4] parameter(0)
  ROOT %y = TYPE OP
}
"""
ROWS = np.arange(16).reshape(4, 4) ** 2
A, B = ROWS[[0, 2]], ROWS[[1, 3]]  # the rows of two groups
AXIS = "channel_id=1, replica_groups=mesh['x'=2,'y'=2] {'x'}, use_global_device_ids=true"


@pytest.mark.parametrize(
    ("type", "op", "expected"),
    [
        ("s32[4]", f"all-reduce(%x), {AXIS}, to_apply=%sum", [A.sum(0), B.sum(0)] * 2),
        ("s32[8]", f"all-gather(%x), {AXIS}, dimensions={{0}}", [A.reshape(-1), B.reshape(-1)] * 2),
        ("s32[2]", f"reduce-scatter(%x), {AXIS}, dimensions={{0}}, to_apply=%sum",
         [A.sum(0)[:2], B.sum(0)[:2], A.sum(0)[2:], B.sum(0)[2:]]),
        ("s32[4]", "all-to-all(%x), channel_id=1, replica_groups={{3,2,1,0}}, dimensions={0}", ROWS[::-1, ::-1].T),
        ("s32[4]", "collective-permute(%x), channel_id=1, source_target_pairs={{0,1},{1,3}}",
         [ROWS[0] * 0, ROWS[0], ROWS[2] * 0, ROWS[1]]),
        ("s32[4]", "collective-broadcast(%x), channel_id=1, replica_groups={{2,0},{1,3}}", ROWS[[2, 1, 2, 1]]),
        ("s32[4]", "all-reduce(%x), channel_id=1, replica_groups={{0}}, to_apply=%sum", [ROWS.sum(0)] * 4),
        ("s32[4]", "all-reduce(%x), replica_groups={{0}}, to_apply=%sum", ROWS),
        ("s32[4]", "collective-permute(%x), source_target_pairs={{0,0}}", ROWS),
        ("s32[4]", "collective-permute(%x), source_target_pairs={}", ROWS * 0),
        ("s32[4]", "optimization-barrier(%x)", ROWS),
        ("u32[]", "partition-id()", range(4)),
        ("u32[]", "replica-id()", [0, 0, 0, 0]),
    ],
)  # fmt: skip
def test_collectives(tmp_path: Path, type: str, op: str, expected: object) -> None:
    (tmp_path / "hlo.txt").write_text(COLLECTIVES.replace("TYPE", type).replace("OP", op))
    found = Program(text.read(str(tmp_path / "hlo.txt"))).run([list(ROWS.astype(np.int32))], 4)
    assert np.array_equal(np.stack(found), np.stack(expected))  # type: ignore[arg-type, call-overload]


@pytest.mark.parametrize(
    ("sharding", "first"),
    [  # where the devices' parts of s32[6,4] begin
        ("{replicated}", [(0, 0)] * 4),
        ("{devices=[4,1]<=[4]}", [(0, 0), (2, 0), (4, 0), (6, 0)]),
        ("{devices=[2,2]<=[2,2]T(1,0)}", [(0, 0), (3, 0), (0, 2), (3, 2)]),
        ("{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}", [(0, 0), (0, 2), (0, 0), (0, 2)]),
        ("{devices=[2,1,2,1]<=[4] last_tile_dims={manual, replicated}}", [(0, 0), (0, 0), (3, 0), (3, 0)]),
        ("{mesh['x'=2,'y'=2], [{'y'}, {'x'}]}", [(0, 0), (3, 0), (0, 2), (3, 2)]),
        ("{mesh['x'=4], [{}, {'x':(2)2}]}", [(0, 0), (0, 2), (0, 0), (0, 2)]),
        ("{mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)), [{'x'}, {}], unreduced={'y'}}", [(0, 0), (3, 0)] * 2),
    ],
)
def test_shardings(sharding: str, first: list[tuple[int, int]]) -> None:
    parsed = shardings.parse(sharding, 2, 4)
    assert [tuple(each.start for each in parsed.slices(device, (6, 4))) for device in range(4)] == first


# --- Errors -----------------------------------------------------------------------------------------------------------

MODULE = """HloModule m, num_partitions=2

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0), sharding={devices=[2]<=[2]}
  ROOT %y = f32[4]{0} negate(%x), sharding={devices=[2]<=[2]}
}
"""
LOCAL = re.sub(r"f32\[4\]", "f32[2]", MODULE)
RECURSION = """%f (a: f32[2]) -> f32[2] {
  %a = f32[2] parameter(0)
  ROOT %b = f32[2] call(%a), to_apply=%f
}
ENTRY"""
INTEGERS = "  %k = s8[2]{0} constant({1,2})\n"
OUTER = "dot(%x, %x), lhs_batch_dims={0}, rhs_batch_dims={0}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda after: after.replace("negate", "fft"), r"after.txt:5: fft %y is not supported"),
        (lambda after: after.replace("negate(%x)", "negate(%z)"), r"after.txt:5: negate %y uses %z, which is not defined"),
        (lambda after: after.replace("negate(%x)", "custom-call(%x), custom_call_target=\"mine\""), "5: .* of mine is not supp"),
        (lambda after: after.replace("ROOT %y = f32[2]{0} ", "ROOT %y = "), "after.txt:5: this is no HLO instruction: ROOT %y"),
        (lambda after: after.replace("negate(%x)", "call(%x), to_apply=%f"), "5: call %y calls %f, which is not defined"),
        (lambda after: after.replace("negate(%x)", "call(%x)"), "after.txt:5: call %y has no calls"),
        (lambda after: after.replace("ENTRY", "%f (a: f32[]) -> f32[] {\n}\nENTRY"), "the computation %f has no ROOT"),
        (lambda after: "", "is not the text of an HLO module: it has no ENTRY computation"),
        (lambda after: after.replace("[2]{0} negate", "[3]{0} negate"), r"5: negate %y has the shape \(3,\), but .* \(2,\)"),
        (lambda after: MODULE, r"4: parameter %x is f32\[4\], which is no part of f32\[4\]"),
        (lambda after: after.replace("f32[2]", "c64[2]"), "parameter %x is c64"),
        (lambda after: after.replace("negate(%x)", "constant({...})"), "5: constant %y is not written out: dump with --xla_dump"),
        (lambda after: after.replace("num_part", "replica_count=2, num_part"), "is for 2 replicas; only partitions are supported"),
        (lambda after: after.replace("devices=[2]<=[2]", "mesh['x'=2], [{'y'}]"), "parameter %x has a wrong sharding: unknown axis y"),
        (lambda after: after.replace("devices=[2]<=[2]", "mesh['x'=2], [{}], unreduced={'x'}"), "%x is unreduced"),
        (lambda after: after.replace("num_partitions=2", "num_partitions=4"), "sharding: .* is not for the devices 0 to 3"),
        (lambda after: after.replace("num_partitions=2", "num_partitions=two"), "num_partitions is two, which is no pos"),
        (lambda after: after.replace("num_partitions=2", "num_partitions=0"), "num_partitions is 0, which is no positive"),
        (lambda after: after.replace("devices=[2]<=[2]", "devices=[2,1]<=[2]"), "is for an array of rank 2, not 1"),
        (lambda after: after.replace("parameter(0)", "parameter(3)"), "4: parameter %x has a wrong number: 1 parameters"),
        (lambda after: after.replace("parameter(0)", "parameter(q)"), "4: parameter %x has a wrong number: 1 parameters"),
        (lambda after: after.replace("negate(%x)", "add(%x)"), "5: add %y has 1 operand$"),
        (lambda after: after.replace("negate(%x)", "negate(%x, %x)"), "5: negate %y has 2 operands$"),
        (lambda after: after.replace("negate(%x)", "iota()"), "5: iota %y cannot be evaluated"),
        (lambda after: after.replace("negate(%x)", "call(%x), to_apply=%f").replace("ENTRY", RECURSION),
         "5: call %b calls %f, which is not defined before it"),
        (lambda after: after.replace("[2]{0} negate(%x)", "[2]{0} add(%x, %k)").replace("  ROOT", INTEGERS + "  ROOT"),
         "add %y cannot be evaluated: it has both floats and integers"),
        (lambda after: after.replace("f32[2]{0} negate(%x)", f"s32[2]{{0}} {OUTER}"), "dot %y .* both floats and integers"),
        (lambda after: after.replace("f32[2]{0} negate", "s32[2]{0} negate"), r"negate %y is s32\[2\], but .* other dtypes"),
        (lambda after: after.replace("f32[2]{0} negate(%x)", "s32[2]{0} constant({1,2})"),
         r"constant %y has a result 0 of the type s32\[2\], not f32\[2\]"),
        (lambda after: after.replace("devices=[2]<=[2]", "shards"), "4: parameter %x has a wrong sharding: unknown sharding {shards}"),
    ],
)  # fmt: skip
def test_wrong_files(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    (tmp_path / "before.txt").write_text(MODULE)
    (tmp_path / "after.txt").write_text(LOCAL)
    ls.verify_hlo(tmp_path / "before.txt", tmp_path / "after.txt")
    (tmp_path / "after.txt").write_text(change(LOCAL))
    with pytest.raises(ls.Error, match=message):
        ls.verify_hlo(tmp_path / "before.txt", tmp_path / "after.txt")


def test_an_unknown_dtype(tmp_path: Path) -> None:
    for name, module in (("before.txt", MODULE), ("after.txt", LOCAL)):
        (tmp_path / name).write_text(module.replace("f32", "c64"))
    with pytest.raises(ls.Error, match=r"before.txt:4: parameter %x is c64\[4\], which is not supported"):
        ls.verify_hlo(tmp_path / "before.txt", tmp_path / "after.txt")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ls.Error, match="cannot read .*before.txt"):
        ls.verify_hlo(tmp_path / "before.txt", tmp_path / "after.txt")


def test_results_that_are_not_numbers_are_reported(tmp_path: Path) -> None:
    for name, module, nan in (("before", MODULE, "nan, nan, nan, nan"), ("after", LOCAL, "nan, nan")):
        (tmp_path / name).write_text(module.replace("negate(%x)", f"constant({{{nan}}})"))
    assert ls.verify_hlo(tmp_path / "before", tmp_path / "after") == (
        ASSUMED,
        TRIED,
        "result 0 has NaN for random inputs, of which nothing else is known",
    )


# --- The command ------------------------------------------------------------------------------------------------------


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "lockstep", "verify", *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_the_command() -> None:
    pair = HLO / "jax-0.10.0/mlp_data_4"
    done = command(file(pair, "before"), file(pair, "after"))
    assert done.returncode == 0, done.stderr
    assert re.sub(r"\d+\.\d s", "… s", done.stdout).splitlines() == [
        f"{file(pair, 'after')}: equal to {file(pair, 'before')} (… s)",
        f"assumed: {ASSUMED}",
        f"assumed: {TRIED}",
    ]
    refused = command(file(pair, "before"), file(pair, "after"), "--ranks", "2")
    assert (
        refused.returncode == 1 and "which --ranks, --strategy, --dims and --no-shrink do not change" in refused.stderr
    )
    wrong = HLO / "jax-0.12.0.1/dynamic_update_slice_2"
    differs = command(file(wrong, "before"), file(wrong, "after"))
    assert differs.returncode == 1 and differs.stderr.startswith("lockstep verify: result 0, f32[2,4], of ")
