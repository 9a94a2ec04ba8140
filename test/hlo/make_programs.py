"""Writes HLO programs before and after XLA's SPMD partitioner, from functions in JAX: the pairs of files in this folder.

The folders here are named after the version of JAX. The devices are CPUs, which need not exist:

    python -m venv jax && jax/bin/pip install jax==0.10.0
    jax/bin/python test/hlo/make_programs.py FOLDER [NAME…]

The file NAME.optimized.txt in FOLDER is the program after all passes.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
if len(sys.argv) > 3 and sys.argv[1] == "--one":  # before jax is imported
    os.environ["XLA_FLAGS"] = (
        "--xla_force_host_platform_device_count=8 --xla_dump_hlo_pass_re=spmd-partitioning|shardy-xla "
        f"--xla_dump_hlo_as_text --xla_dump_large_constants --xla_dump_to={sys.argv[3]}"
    )

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

PROGRAMS = {}


def program(*shapes, **mesh):
    """Adds a function to PROGRAMS, named after it and the mesh; arguments are `type[dims] @ axes` of the mesh."""

    def add(function):
        PROGRAMS[function.__name__ + "_" + "x".join(str(n) for n in mesh.values())] = (function, shapes, mesh)
        return function

    return add


def on_meshes(*shapes, meshes):
    def add(function):
        for mesh in meshes:
            program(*shapes, **mesh)(function)
        return function

    return add


def to(x, *axes):
    return lax.with_sharding_constraint(x, P(*axes))


def descent(loss):
    """A step of gradient descent: the loss and the new first argument."""

    def step(weights, *data):
        value, gradients = jax.value_and_grad(loss)(weights, *data)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    return step


def cross_entropy(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1))


def named(name):
    def rename(function):
        function.__name__ = name
        return function

    return rename


def mlp_loss(weights, x, labels):
    w1, b1, w2 = weights
    return cross_entropy(jax.nn.relu(x @ w1 + b1) @ w2, labels)


_MLP = ("f32[6,8]", "f32[8]", "f32[8,4]")


def mlp(w1, b1, w2, x, labels):
    return descent(mlp_loss)((w1, b1, w2), x, labels)


on_meshes(*_MLP, "f32[8,6] @ data", "s32[8] @ data", meshes=[{"data": 2}, {"data": 4}, {"data": 8}])(
    named("mlp_data")(mlp)
)


@on_meshes("f32[6,8] @ -,model", "f32[8] @ model", "f32[8,4] @ model", "f32[8,6] @ data", "s32[8] @ data",
           meshes=[{"data": 1, "model": 4}, {"data": 2, "model": 2}, {"data": 2, "model": 4}])  # fmt: skip
def mlp_tensor(w1, b1, w2, x, labels):
    return mlp(w1, b1, w2, x, labels)


@on_meshes("f32[4,8] @ data", "f32[8] @ data", "f32[8,4] @ data", "f32[8,4] @ data", "s32[8] @ data",
           meshes=[{"data": 2}, {"data": 4}])  # fmt: skip
def mlp_zero(w1, b1, w2, x, labels):
    loss, weights = mlp(w1, b1, w2, x, labels)
    return loss, jax.tree.map(lambda w: to(w, "data"), weights)


def embedding(table, ids, labels):
    return descent(lambda table: cross_entropy(jnp.take(table, ids, axis=0), labels))(table)


on_meshes(
    "f32[16,4] @ model", "s32[8] @ data", "s32[8] @ data", meshes=[{"data": 2, "model": 2}, {"data": 1, "model": 4}]
)(named("embedding_vocabulary")(lambda table, ids, labels: embedding(table, ids, labels)))
on_meshes(
    "f32[16,4] @ -,model", "s32[8] @ data", "s32[8] @ data", meshes=[{"data": 2, "model": 2}, {"data": 1, "model": 4}]
)(named("embedding_features")(lambda table, ids, labels: embedding(table, ids, labels)))
on_meshes("f32[16,4]", "s32[8] @ data", "s32[8] @ data", meshes=[{"data": 4}])(
    named("embedding_tokens")(lambda table, ids, labels: embedding(table, ids, labels))
)


@on_meshes("f32[16,4] @ data", "s32[6]", "f32[6,4]", meshes=[{"data": 2}, {"data": 4}])
def scatter_add(x, ids, updates):
    return to(x.at[ids].add(updates), "data")


@on_meshes("f32[16,4] @ data", "s32[8] @ data", meshes=[{"data": 4}])
def gather(x, ids):
    return to(x[ids], "data"), to(x[:, ids % 4], "data")


def attend(q, k, v):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / 2.0
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1), v)


def attention(x, wq, wk, wv, wo):
    def loss(weights):
        q, k, v = (jnp.einsum("btc,chd->bthd", x, w) for w in weights[:3])
        return jnp.sum(jnp.einsum("bthd,hdc->btc", attend(q, k, v), weights[3]) ** 2)

    return descent(loss)((wq, wk, wv, wo))


_W = "f32[4,4,2]"
on_meshes("f32[2,4,4] @ data", *[_W + " @ -,model"] * 3, "f32[4,2,4] @ model",
          meshes=[{"data": 2, "model": 2}, {"data": 2, "model": 4}])(
    named("attention_heads")(lambda x, wq, wk, wv, wo: attention(x, wq, wk, wv, wo)))  # fmt: skip
on_meshes("f32[2,4,4] @ -,data", *[_W] * 3, "f32[4,2,4]", meshes=[{"data": 2}, {"data": 4}])(
    named("attention_sequence")(lambda x, wq, wk, wv, wo: attention(x, wq, wk, wv, wo)))  # fmt: skip


@on_meshes("f32[8,6] @ data,model", "f32[6] @ model", "f32[6] @ model", meshes=[{"data": 2, "model": 2}])
def layernorm(x, scale, shift):
    def loss(weights):
        centered = x - x.mean(-1, keepdims=True)
        normal = centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        return jnp.sum(jnp.tanh(normal * weights[0] + weights[1]))

    return descent(loss)((scale, shift))


@on_meshes("f32[8,6] @ data,model", "s32[8] @ data", meshes=[{"data": 2, "model": 2}, {"data": 1, "model": 2}])
def cross_entropy_classes(logits, labels):
    return jax.value_and_grad(cross_entropy)(logits, labels)


@on_meshes("f32[7,5]", "f32[5,9]", meshes=[{"data": 2, "model": 2}, {"data": 4, "model": 2}])
def uneven(x, w):
    y = to(jax.nn.softmax(to(x, "data", "model") @ to(w, "model"), -1), "data", "model")
    return y.sum(), y.max(0), jnp.cumsum(y, 0), to(y[::-1].T, "model")


@on_meshes("f32[10,5]", "s32[7]", meshes=[{"data": 4}])
def uneven_embedding(table, ids):
    return jax.value_and_grad(lambda table: jnp.sum(to(to(table, "data")[to(ids, "data")], "data") ** 2))(table)


@on_meshes("f32[8,4] @ data", "f32[4,4] @ data", meshes=[{"data": 2}, {"data": 4}])
def along_sharded(x, y):
    both = jnp.concatenate([x, y[::-1]], 0)
    return (to(jnp.cumsum(x, 0), "data"), to(x[::-1], "data"), to(both, "data"), to(jnp.roll(x, 3, 0), "data"),
            to(jnp.pad(x, ((1, 3), (0, 0))), "data"), to(x[1:7:2], "data"), x.T @ x, to(x.T, "data"))  # fmt: skip


def cnn_loss(weights, x, labels):
    kernel, w = weights
    y = jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return cross_entropy(y.reshape(y.shape[0], -1) @ w, labels)


def cnn(kernel, w, x, labels):
    return descent(cnn_loss)((kernel, w), x, labels)


on_meshes("f32[3,3,2,3]", "f32[48,4]", "f32[4,8,8,2] @ data", "s32[4] @ data", meshes=[{"data": 2}, {"data": 4}])(
    named("cnn_data")(lambda kernel, w, x, labels: cnn(kernel, w, x, labels)))  # fmt: skip
on_meshes("f32[3,3,2,3]", "f32[48,4]", "f32[2,8,8,2] @ -,data", "s32[2]", meshes=[{"data": 2}, {"data": 4}])(
    named("cnn_space")(lambda kernel, w, x, labels: cnn(kernel, w, x, labels)))  # fmt: skip


@on_meshes("f32[2,9,4]", "f32[3,4,4]", meshes=[{"data": 4}])
def convolution_strided(x, kernel):
    y = lax.conv_general_dilated(to(x, None, "data"), kernel, (2,), [(1, 1)], dimension_numbers=("NHC", "HIO", "NHC"))
    z = lax.conv_general_dilated(to(x, None, None, "data"), kernel[:, :1], (1,), "SAME", rhs_dilation=(2,),
                                 dimension_numbers=("NHC", "HIO", "NHC"), feature_group_count=4)  # fmt: skip
    return to(y, None, "data"), z


@on_meshes("f32[8,6] @ data,model", meshes=[{"data": 2, "model": 2}])
def order(x):
    return jnp.sort(x, 1), jnp.argmax(x, 1), lax.top_k(x, 2), jnp.argsort(x, 0)


@on_meshes("f32[3,4,4] @ -,-,model", "f32[4,4] @ data", meshes=[{"data": 2, "model": 2}])
def scan(ws, x):
    def loss(ws):
        return jnp.sum(lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), x, ws)[0])

    return descent(loss)(ws)


@on_meshes("f32[4,8] @ -,data", "f32[8,4] @ data", meshes=[{"data": 4}])
def shard_map_product(x, w):
    def local(x, w):
        y = lax.psum_scatter(x @ w, "data", scatter_dimension=1, tiled=True)
        z = lax.ppermute(y, "data", [(k, (k + 1) % 4) for k in range(4)])
        return y + lax.axis_index("data"), lax.all_to_all(z, "data", 0, 1, tiled=True), lax.all_gather(z, "data")

    return jax.shard_map(local, mesh=MESH, in_specs=(P(None, "data"), P("data")),
                         out_specs=(P(None, "data"), P(None, "data"), P(None, None, "data")))(x, w)  # fmt: skip


@on_meshes("f32[8,6] @ data", "u32[2]", meshes=[{"data": 2}, {"data": 4}])
def dropout(x, key):
    keep = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.where(keep, x / 0.5, 0.0), jax.random.uniform(key, (8, 2))


@on_meshes("f32[8,6] @ data", "u32[4]", meshes=[{"data": 2}])
def rng_bits(x, key):
    return x + to(lax.rng_bit_generator(key, (8, 6))[1], "data").astype(jnp.float32)


@on_meshes("f32[2,8] @ -,data", "s32[]", meshes=[{"data": 2}])
def dynamic_slice(x, start):
    return to(lax.dynamic_slice(x, [0, start], (2, 6)), None, "data")


@on_meshes("f32[2,4] @ -,data", "f32[2,1]", "s32[]", meshes=[{"data": 2}])
def dynamic_update_slice(x, y, start):
    """openxla/xla#49118: devices compare their rows with the start before it is clamped."""
    return to(lax.dynamic_update_slice(x, y, [0, start]), None, "data")


@on_meshes("bf16[8,4] @ data", "f32[4,4]", meshes=[{"data": 2}])
def mixed_precision(x, w):
    return jax.value_and_grad(lambda w: jnp.mean((x @ w.astype(jnp.bfloat16)).astype(jnp.float32) ** 2))(w)


@on_meshes("f32[6,8] @ data", "s32[]", meshes=[{"data": 2}])
def branches(x, which):
    return lax.switch(which, [lambda x: x @ x.T, lambda x: (x * 2) @ x.T, lambda x: x @ x[::-1].T], x)


@on_meshes("f32[16,4] @ data", "s32[4,4] @ data,model", meshes=[{"data": 2, "model": 2}])
def reduced_embedding(table, ids):
    """openxla/xla#42481: the gradient is sliced along the vocabulary before it is summed along `model`."""

    def loss(table):
        table = jax.reshard(table, P("data", None, reduced={"model"}))
        return jnp.sum(table.at[ids].get(out_sharding=P("data", "model", None)) ** 2)

    return jax.grad(loss)(table)


def argument(text, mesh):
    """An array of `f32[6,8] @ -,model`, which has no memory."""
    dtype, dims, axes = re.fullmatch(r"(\w+)\[([\d,]*)\](?: @ (.*))?", text).groups()
    dtype = {"f32": "float32", "s32": "int32", "u32": "uint32", "bf16": "bfloat16"}[dtype]
    spec = P(*[None if axis == "-" else axis for axis in (axes or "").split(",") if axis])
    return jax.ShapeDtypeStruct([int(n) for n in dims.split(",") if n], dtype, sharding=NamedSharding(mesh, spec))


def compile_program(name):
    global MESH
    function, shapes, axes = PROGRAMS[name]
    explicit = name.startswith("reduced")
    count = 1
    for extent in axes.values():
        count *= extent
    MESH = jax.make_mesh(tuple(axes.values()), tuple(axes), devices=jax.devices()[:count],
                         axis_types=((AxisType.Explicit if explicit else AxisType.Auto),) * len(axes))  # fmt: skip
    with jax.set_mesh(MESH):
        jax.jit(function).lower(*[argument(shape, MESH) for shape in shapes]).compile()


def trimmed(text):
    """The text without places in sources."""
    text = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*", "", text)
    return re.sub(r" stack_frame_id=\d+", "", re.sub(r"\n{3,}", "\n\n", text))


def main():
    if sys.argv[1] == "--one":
        compile_program(sys.argv[2])
        return
    patterns = {"before": "*before_spmd-partitioning*", "after": "*after_spmd-partitioning*",
                "optimized": "*cpu_after_optimizations.txt"}  # fmt: skip
    for name in sys.argv[2:] or PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--one", name, folder]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            for when, pattern in patterns.items():
                found = sorted(Path(folder).glob(pattern), key=lambda path: path.stat().st_size)
                if not found:
                    print(f"{name}: no program {when}: {done.stderr[-300:]}")
                    continue
                (Path(sys.argv[1]) / f"{name}.{when}.txt").write_text(trimmed(found[-1].read_text()))


if __name__ == "__main__":
    main()
