"""The meaning of HLO instructions on one device. A row of `OPS` is a function of the instruction, of a function that
runs one of its computations on arrays (`region`), and of the operands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from . import exact, windows
from .exact import EXACT
from .text import Instruction

Region = Callable[[str], Callable[..., "tuple[np.ndarray, ...]"]]
OPS: dict[str, Callable] = {}


def _op(*names: str) -> Callable:
    def add(function: Callable) -> Callable:
        OPS.update(dict.fromkeys(names, function))
        return function

    return add


# Elementwise


def _truncated(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    divisor = np.where(y == 0, 1, y).astype(y.dtype)
    quotient = x // divisor
    quotient += (quotient * divisor != x) & ((x < 0) != (y < 0))
    return np.where(y == 0, np.array(-1).astype(x.dtype), quotient)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y))).astype(x.dtype)


def _shift(shift: Callable) -> Callable:
    def apply(x: np.ndarray, by: np.ndarray) -> np.ndarray:
        bits = x.dtype.itemsize * 8
        fill = shift(x, np.array(bits - 1, x.dtype)) if shift is np.right_shift and x.dtype.kind == "i" else 0
        is_inside = (by >= 0) & (by < bits)
        return np.where(is_inside, shift(x, np.where(is_inside, by, 0)), fill).astype(x.dtype)

    return apply


def _shift_logically(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return _shift(np.right_shift)(x.view(unsigned), by.astype(unsigned)).view(x.dtype)


_INTEGERS: dict[str, Callable] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": _truncated, "remainder": _remainder,
    "maximum": np.maximum, "minimum": np.minimum, "power": np.power, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert, "negate": np.negative, "abs": np.abs, "sign": np.sign,
    "shift-left": _shift(np.left_shift), "shift-right-arithmetic": _shift(np.right_shift),
    "shift-right-logical": _shift_logically,
}  # fmt: skip

# By their names in verify/meaning.h.
_NUMBERS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "max", "minimum": "min",
    "power": "pow", "negate": "neg", "abs": "abs", "sign": "sign", "exponential": "exp", "log": "log",
    "log-plus-one": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt",
}  # fmt: skip
RANDOM_FUNCTIONS = (
    "tanh", "sine", "cosine", "tan", "erf", "cbrt", "atan2", "floor", "ceil", "round-nearest-afz",
    "round-nearest-even", "remainder",
)  # fmt: skip


_OF_TWO = (
    "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "power", "and", "or", "xor", "shift-left",
    "shift-right-arithmetic", "shift-right-logical", "atan2",
)  # fmt: skip


@_op(*_INTEGERS, *_NUMBERS, *RANDOM_FUNCTIONS)
def _elementwise(i: Instruction, region: Region, *x: np.ndarray) -> np.ndarray:
    if len(x) != (2 if i.opcode in _OF_TWO else 1):
        raise i.error(f"has {len(x)} operand{'s' * (len(x) != 1)}")
    if any(each.dtype == EXACT for each in x):
        return exact.apply(_NUMBERS.get(i.opcode, i.opcode), *x)
    with np.errstate(over="ignore"):
        return _INTEGERS[i.opcode](*x).astype(x[0].dtype)


@_op("exponential-minus-one")
def _exponential_minus_one(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    return exact.apply("sub", exact.apply("exp", x), exact.of_integer(1))


@_op("logistic")
def _logistic(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    one = exact.of_integer(1)
    return exact.apply("div", one, exact.apply("add", one, exact.apply("exp", exact.apply("neg", x))))


@_op("is-finite")
def _is_finite(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    return ~exact.is_nan(exact.apply("sub", x, x))


def _order(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return exact.order(x, y) if EXACT in (x.dtype, y.dtype) else np.where(x == y, 0, np.where(x < y, -1, 1))


@_op("compare")
def _compare(i: Instruction, region: Region, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    order = _order(x, y)
    if x.dtype == EXACT and i.attributes.get("type") == "TOTALORDER":  # a NaN is the largest
        order = np.where(order == 2, np.where(exact.is_nan(x), 1, -1), order % 3)
    holds = {"EQ": (0,), "NE": (-1, 1, 2, 3), "LT": (-1,), "LE": (-1, 0), "GT": (1,), "GE": (0, 1)}
    return np.isin(order, holds[i.attributes["direction"]])


@_op("select")
def _select(i: Instruction, region: Region, where: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(where, x, y)


@_op("clamp")
def _clamp(i: Instruction, region: Region, low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    if EXACT in (low.dtype, x.dtype, high.dtype):
        return exact.apply("min", exact.apply("max", x, low), high)
    return np.minimum(np.maximum(x, low), high)


@_op("convert")
def _convert(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    wanted = exact.DTYPES[i.array.dtype]
    if x.dtype == EXACT and wanted == bool:
        return exact.order(x, np.zeros((), EXACT)) != 0
    if x.dtype == EXACT and wanted != EXACT:
        integers = exact.to_integers(x)
        if integers is None:
            raise i.error("converts floats that are no integers")
        return np.clip(integers, np.iinfo(wanted).min, min(np.iinfo(wanted).max, 2**63 - 1)).astype(wanted)
    return exact.converted(x, wanted)


@_op("bitcast-convert")
def _bitcast(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    wanted = exact.DTYPES[i.array.dtype]
    if x.dtype == EXACT or (wanted == EXACT and i.array.dtype == "bf16"):
        raise i.error("of floats is not supported")
    if wanted == EXACT:
        return exact.of_floats(x.view(f"f{x.dtype.itemsize}").astype(np.float64), i.array.dtype)
    return np.ascontiguousarray(x).reshape(-1).view(wanted).reshape(i.array.dims)


@_op("reduce-precision")
def _same(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    return x


# Generators

_CONSTANTS = {"true": 1, "false": 0}


@_op("constant")
def _constant(i: Instruction, region: Region) -> np.ndarray:
    if "..." in i.argument:
        raise i.error("is not written out: dump with --xla_dump_large_constants")
    texts = re.findall(r"[^\s{},()]+", i.argument)
    dtype = exact.DTYPES[i.array.dtype]
    if dtype == EXACT:
        return exact.of_floats(np.array([float(each) for each in texts]).reshape(i.array.dims), i.array.dtype)
    return np.array([_CONSTANTS.get(each) if each in _CONSTANTS else int(each) for each in texts], dtype).reshape(
        i.array.dims
    )


@_op("iota")
def _iota(i: Instruction, region: Region) -> np.ndarray:
    along = i.numbers("iota_dimension")[0]
    shape = [extent if d == along else 1 for d, extent in enumerate(i.array.dims)]
    places = np.broadcast_to(np.arange(i.array.dims[along]).reshape(shape), i.array.dims)
    dtype = exact.DTYPES[i.array.dtype]
    return exact.of_integers(places) if dtype == EXACT else places.astype(dtype)


# Movements


@_op("broadcast")
def _broadcast(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(i.array.dims)
    for d, extent in zip(i.numbers("dimensions"), x.shape, strict=True):
        shape[d] = extent
    return np.broadcast_to(x.reshape(shape), i.array.dims)


@_op("reshape")
def _reshape(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    return x.reshape(i.array.dims)


@_op("transpose")
def _transpose(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    return x.transpose(i.numbers("dimensions"))


@_op("reverse")
def _reverse(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    return np.flip(x, i.numbers("dimensions"))


@_op("slice")
def _slice(i: Instruction, region: Region, x: np.ndarray) -> np.ndarray:
    bounds = re.findall(r"\[(\d+):(\d+)(?::(\d+))?\]", i.attributes["slice"])
    return x[tuple(slice(int(low), int(high), int(step or 1)) for low, high, step in bounds)]


@_op("concatenate")
def _concatenate(i: Instruction, region: Region, *x: np.ndarray) -> np.ndarray:
    return np.concatenate(x, i.numbers("dimensions")[0])


def _part(i: Instruction, dims: Sequence[int], sizes: Sequence[int], starts: Sequence[np.ndarray]) -> tuple[slice, ...]:
    at = [min(max(int(start), 0), dim - size) for start, dim, size in zip(starts, dims, sizes, strict=True)]
    return tuple(slice(start, start + size) for start, size in zip(at, sizes, strict=True))


@_op("dynamic-slice")
def _dynamic_slice(i: Instruction, region: Region, x: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    return x[_part(i, x.shape, i.array.dims, starts)]


@_op("dynamic-update-slice")
def _dynamic_update_slice(
    i: Instruction, region: Region, x: np.ndarray, update: np.ndarray, *starts: np.ndarray
) -> np.ndarray:
    if update.dtype != x.dtype:
        raise TypeError(f"the update has {update.dtype}")
    result = x.copy()
    result[_part(i, x.shape, update.shape, starts)] = update
    return result


@_op("pad")
def _pad(i: Instruction, region: Region, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
    pads = [[int(each) for each in pad.split("_")] for pad in i.attributes["padding"].split("x")] if x.ndim else []
    along = [windows.Window(low=pad[0], high=pad[1], base_dilation=1 + sum(pad[2:])) for pad in pads]
    return windows.patches(x, along, fill).reshape(i.array.dims)


@_op("gather")
def _gather(i: Instruction, region: Region, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    # The extents of a window are those of the result, and of the slice along dimensions that are dropped: 1.
    return x[tuple(windows.selected(i, x.shape, indices, i.array.dims, scatters=False)[0])]


# Sums


@_op("dot")
def _dot(i: Instruction, region: Region, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = (exact.converted(each, exact.DTYPES[i.array.dtype]) for each in (a, b))
    batch_a, sum_a, batch_b, sum_b = (
        i.numbers(f"{side}_{kind}_dims") for side in ("lhs", "rhs") for kind in ("batch", "contracting")
    )
    rows = [d for d in range(a.ndim) if d not in batch_a + sum_a]
    columns = [d for d in range(b.ndim) if d not in batch_b + sum_b]
    extent = lambda x, dims: int(np.prod([x.shape[d] for d in dims]))
    left = a.transpose(batch_a + rows + sum_a).reshape(extent(a, batch_a), extent(a, rows), extent(a, sum_a))
    right = b.transpose(batch_b + sum_b + columns).reshape(left.shape[0], left.shape[2], extent(b, columns))
    return exact.multiply(left, right).reshape(i.array.dims)


@_op("convolution")
def _convolution(i: Instruction, region: Region, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    x, kernel = (exact.converted(each, exact.DTYPES[i.array.dtype]) for each in (x, kernel))
    return windows.convolve(i, x, kernel, exact.multiply, np.zeros((), x.dtype))


def fold(combine: Callable[..., tuple[np.ndarray, ...]], terms: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Each array of `terms` combined along dimension 0, of one or more, by pairs of neighbours."""
    terms = list(terms)
    while (count := len(terms[0])) > 1:
        even = count // 2 * 2
        pairs = combine(*[each[0:even:2] for each in terms], *[each[1:even:2] for each in terms])
        terms = [np.concatenate([pair, each[even:]]) for pair, each in zip(pairs, terms, strict=True)]
    return [each[0] for each in terms]


def _folded(i: Instruction, region: Region, terms: Sequence[np.ndarray], first: Sequence[np.ndarray]) -> object:
    """The combination of first values and of all terms along dimension 0."""
    combine = region(i.callee("to_apply"))
    if len(terms[0]):
        folded = combine(*[np.broadcast_to(x, t.shape[1:]) for x, t in zip(first, terms, strict=True)],
                         *fold(combine, terms))  # fmt: skip
    else:
        folded = tuple(np.broadcast_to(x, t.shape[1:]) for x, t in zip(first, terms, strict=True))
    return folded if isinstance(i.type, tuple) else folded[0]


@_op("reduce")
def _reduce(i: Instruction, region: Region, *x: np.ndarray) -> object:
    arrays, first = x[: len(x) // 2], x[len(x) // 2 :]
    dims = i.numbers("dimensions")
    kept = [d for d in range(arrays[0].ndim) if d not in dims]
    shape = [arrays[0].shape[d] for d in kept]
    terms = [each.transpose(dims + kept).reshape([-1, *shape]) if each.size else each[:0] for each in arrays]
    terms = [t if x.size else np.empty([0, *shape], x.dtype) for t, x in zip(terms, arrays, strict=True)]
    return _folded(i, region, terms, first)


@_op("reduce-window")
def _reduce_window(i: Instruction, region: Region, *x: np.ndarray) -> object:
    arrays, first = x[: len(x) // 2], x[len(x) // 2 :]
    along = windows.parse(i.attributes.get("window"), arrays[0].ndim)
    shape = i.arrays[0].dims
    taken = [windows.patches(each, along, fill) for each, fill in zip(arrays, first, strict=True)]
    return _folded(i, region, [np.moveaxis(each.reshape([*shape, -1]), -1, 0) for each in taken], first)


def _accumulate(
    combine: Callable[..., tuple[np.ndarray, ...]],
    results: Sequence[np.ndarray],
    places: np.ndarray,
    updates: Sequence[np.ndarray],
) -> None:
    """Combines the updates into the elements of flat results at these places, one after another."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(places) else np.array([], int)
    turn = np.arange(len(places)) - np.repeat(starts, np.diff([*starts, len(places)]))
    for k in range(turn.max(initial=-1) + 1):
        which = order[turn == k]
        at = places[which]
        found = combine(*[each[at] for each in results], *[each[which] for each in updates])
        for result, value in zip(results, found, strict=True):
            result[at] = value


@_op("scatter")
def _scatter(i: Instruction, region: Region, *x: np.ndarray) -> object:
    count = len(x) // 2
    arrays, indices, updates = x[:count], x[count], x[count + 1 :]
    dims = arrays[0].shape
    index, in_bounds = windows.selected(i, dims, indices, updates[0].shape, scatters=True)
    places = np.ravel_multi_index(index, dims) if dims else np.zeros(in_bounds.shape, int)
    results = [each.reshape(-1).copy() for each in arrays]
    combine = region(i.callee("to_apply"))
    _accumulate(combine, results, places[in_bounds], [each[in_bounds] for each in updates])
    shaped = tuple(each.reshape(dims) for each in results)
    return shaped if isinstance(i.type, tuple) else shaped[0]


@_op("select-and-scatter")
def _select_and_scatter(
    i: Instruction, region: Region, x: np.ndarray, source: np.ndarray, first: np.ndarray
) -> np.ndarray:
    along = windows.parse(i.attributes.get("window"), x.ndim)
    places = np.arange(x.size).reshape(x.shape)
    taken = windows.patches(places, along, np.array(-1)).reshape(source.size, -1)
    flat, keeps = x.reshape(-1), region(i.callee("select"))
    best = taken[:, 0]
    for at in taken.T[1:]:
        is_better = (at >= 0) & ((best < 0) | ~keeps(flat[best], flat[at])[0])
        best = np.where(is_better, at, best)
    result = np.broadcast_to(first, x.shape).reshape(-1).copy()
    _accumulate(region(i.callee("scatter")), [result], best, [source.reshape(-1)])
    return result.reshape(x.shape)


# Order


@_op("sort")
def _sort(i: Instruction, region: Region, *x: np.ndarray) -> object:
    """By exchanges of neighbours, which is stable."""
    along = i.numbers("dimensions")[0]
    rows = [np.moveaxis(each, along, 0).copy() for each in x]
    count, less = len(rows[0]), region(i.callee("to_apply"))
    for turn in range(count):
        low, high = slice(turn % 2, count - 1, 2), slice(turn % 2 + 1, count, 2)
        pairs = [each for row in rows for each in (row[high], row[low])]
        if not pairs[0].size:
            continue
        exchange = less(*pairs)[0]
        for row in rows:
            below, above = row[low].copy(), row[high].copy()
            row[low], row[high] = np.where(exchange, above, below), np.where(exchange, below, above)
    found = tuple(np.moveaxis(each, 0, along) for each in rows)
    return found if isinstance(i.type, tuple) else found[0]


@_op("topk")
def _top_k(i: Instruction, region: Region, x: np.ndarray) -> object:
    above, below = (x[..., None, :], x[..., :, None])[:: 1 if i.attributes["largest"] == "true" else -1]
    order = _order(above, below)
    is_before = np.tri(x.shape[-1], k=-1, dtype=bool)
    rank = ((order == 1) | ((order == 0) & is_before)).sum(-1)
    places = np.argsort(rank, -1, kind="stable")[..., : int(i.attributes["k"])]
    return np.take_along_axis(x, places, -1), places.astype(np.int32)


@_op("rng-bit-generator")
def _random_bits(i: Instruction, region: Region, state: np.ndarray) -> object:
    seed = [int(each) for each in state.reshape(-1).astype(np.uint64)]
    bits = i.arrays[-1]
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, 2**63, bits.dims, np.uint64).astype(exact.DTYPES[bits.dtype])
    state = generator.integers(0, 2**31, state.shape).astype(state.dtype)
    return (state, drawn) if isinstance(i.type, tuple) else drawn
