"""Writes operations.json: functions in JAX as HLO text, small integers as inputs, and what XLA computes of them on a CPU.

Of JAX 0.10.0, whose installation make_programs.py describes:

    jax/bin/python test/hlo/make_operations.py
"""

import json
import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CASES = {}


def case(*arguments):
    """Adds a function with arguments `f4,3`: floats of that shape; `i…`: integers; `u…`; `b…`: truth values."""

    def add(function):
        CASES[function.__name__] = (function, arguments)
        return function

    return add


@case("f4,3", "f4,3")
def arithmetic(x, y):
    return x + y, x - y, x * y, -x, x**3, (x + x) / 2, jnp.sqrt(x * 0.0), lax.square(x)


@case("i4,3", "i4,3")
def integers(x, y):
    return x // 2, lax.div(x, y), lax.rem(x, y), x << 2, x >> 1, lax.shift_right_logical(x, 1), x ^ y, ~x, abs(x)


@case("u6", "u6")
def unsigned(x, y):
    return x - y, x * jnp.uint32(2654435761), x >> 3, lax.max(x, y), lax.bitcast_convert_type(x, jnp.int32)


@case("i4,3", "i4,3")
def order(x, y):
    return (x < y, x == y, x >= y, jnp.where(x > y, x, y), lax.clamp(-1, x, 2), jnp.sort(x, 0), jnp.argsort(x, 1),
            jnp.argmax(x, 0), lax.top_k(x, 2), jnp.sign(x))  # fmt: skip


@case("b4,3", "b4,3")
def truth(x, y):
    return x & y, x | y, x ^ y, ~x, x.any(0), x.all(1), x.astype(jnp.int32), x.astype(jnp.float32)


@case("f4,3", "i5")
def conversions(x, i):
    return x.astype(jnp.int32), x.astype(jnp.bfloat16), i.astype(jnp.float32), i.astype(jnp.uint8), i != 0


@case("f4,3,2")
def shapes(x):
    return (x.T, x.reshape(6, 4), jnp.broadcast_to(x[:, None], (4, 5, 3, 2)), x[::-1, :, ::-1], x[1:4:2, 1:],
            jnp.pad(x, ((1, 2), (0, 0), (3, 0)), constant_values=7), jnp.concatenate([x, x + 1], 1),
            lax.pad(x, 5.0, ((-1, 2, 1), (0, 0, 0), (1, -1, 2))), lax.iota(jnp.float32, 5))  # fmt: skip


@case("f6,5", "i", "f2,3")
def dynamic(x, start, y):
    return lax.dynamic_slice(x, (start, 1), (3, 4)), lax.dynamic_update_slice(x, y, (start, start))


@case("f2,3,4", "f2,4,5", "i3,4", "i4,2")
def products(x, y, i, j):
    return jnp.einsum("bij,bjk->bik", x, y), jnp.einsum("bij,bkl->jikb", x, y), i @ j, jnp.einsum("bij,blk->bik", x, y)


@case("f4,3,5", "i4,3,5")
def reductions(x, i):
    return (x.sum(), x.sum((0, 2)), x.prod(1), i.max(1), i.min((0, 1)), jnp.cumsum(x, 1), jnp.cumprod(x, 0),
            lax.reduce(i, -1, lax.bitwise_xor, (1,)), lax.cummax(i, 2))  # fmt: skip


@case("f6,4", "i5", "i3,2")
def gathers(x, i, j):
    return (x[i], x[i % 6, 1], x[:, i % 4], jnp.take_along_axis(x[:5], i[:, None] % 4, 1), jnp.take(x, i, 0, mode="clip"),
            jax.vmap(lambda row, k: row[k])(x, jnp.abs(jnp.resize(i, 6)) % 4), x[j % 6, j % 4],
            jax.vmap(lambda k: lax.dynamic_slice(x, (k, 0), (2, 3)))(i))  # fmt: skip


@case("f6,4", "i5", "f5,4", "i3,2")
def scatters(x, i, y, j):
    return (x.at[i].add(y), x.at[jnp.arange(5)].set(y), x.at[i % 6, 1].multiply(y[:, 0]), x.at[:, i % 4].add(1.0),
            x.at[j % 6, j % 4].add(2.0), jax.vmap(lambda row, k: row.at[k].add(3.0))(x, jnp.resize(i, 6)),
            jnp.zeros((8, 8)).at[2:4, 3:5].add(y[:2, :2]))  # fmt: skip


@case("f2,7,6,4", "f3,2,4,6", "f3,2,2,4")
def convolutions(x, kernel, grouped):
    of = lambda x, k, **o: lax.conv_general_dilated(x, k, dimension_numbers=("NHWC", "HWIO", "NHWC"), **o)
    loss = lambda x, k: (of(x, k, window_strides=(2, 1), padding="SAME") ** 2).sum()
    return (of(x, kernel, window_strides=(2, 1), padding="SAME"),
            of(x, kernel, window_strides=(1, 1), padding=((1, 0), (2, 3)), rhs_dilation=(2, 1), lhs_dilation=(1, 3)),
            of(x, grouped, window_strides=(1, 2), padding="VALID", feature_group_count=2),
            of(x, kernel, window_strides=(1, 1), padding="VALID", batch_group_count=2),
            *jax.grad(loss, (0, 1))(x, kernel))  # fmt: skip


def selected(x, source):
    """Adds the source to the largest elements of windows (lax has no public name for it)."""
    from jax._src.lax.windowed_reductions import _select_and_scatter_add

    return _select_and_scatter_add(source, x, lax.ge_p, (1, 2, 2), (1, 2, 2), ((0, 0), (0, 0), (0, 0)))


@case("f2,6,5", "i2,6,5", "i2,3,2")
def pools(x, i, source):
    pool = lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 2), (1, 2, 1), "SAME")
    most = lax.reduce_window(i, jnp.iinfo(jnp.int32).min, lax.max, (1, 2, 2), (1, 2, 2), "VALID")
    return pool(x), jax.grad(lambda x: (pool(x) ** 2).sum())(x), most, selected(i, source)


@case("f3,4,4", "f4,4", "i")
def loops(ws, x, n):
    def body(h, w):
        return h @ w + 1, h.sum()

    return (lax.scan(body, x, ws), lax.fori_loop(0, 4, lambda k, h: h * 2 + k, x),
            lax.switch(jnp.abs(n) % 3, [lambda x: x, lambda x: x + 1, lambda x: x * 2], x),
            lax.cond(n > 0, lambda x: x, lambda x: -x, x))  # fmt: skip


@case("u2")
def random_bits(key):
    return jax.random.bits(key, (5,)), jax.random.randint(key, (7,), -5, 99), jax.random.permutation(key, 6)


def argument(text, generator):
    dims = [int(each) for each in text[1:].split(",") if each]
    dtype = {"f": np.float32, "i": np.int32, "u": np.uint32, "b": np.bool_}[text[0]]
    return generator.integers(0 if text[0] in "ub" else -4, 2 if text[0] == "b" else 5, dims).astype(dtype)


def main():
    generator = np.random.default_rng(0)
    found = {}
    for name, (function, texts) in CASES.items():
        arguments = [argument(text, generator) for text in texts]
        hlo = jax.jit(function).lower(*arguments).as_text(dialect="hlo")
        results = jax.tree.leaves(jax.jit(function)(*arguments))
        found[name] = {
            "hlo": hlo,
            "inputs": [each.tolist() for each in arguments],
            "results": [np.asarray(each, np.float64).tolist() for each in results],
        }
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
    Path(__file__).with_name("operations.json").write_text(f"{{\n{rows}\n}}\n")


if __name__ == "__main__":
    main()
