"""JAX as a contestant of the measurements (contestant.py): jax_peer.py NETWORK PRECISION. Runs in a Python that has
jax.

Needs nothing else. Trains LeNet, MLPs and GPTs of specs.py by SGD with momentum, jitted as one step that donates the
arrays it updates. PRECISION is f32, TF32 or bf16: then the forward pass computes in bf16, from weights in f32, and the
loss is f32.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from contestant import serve
from specs import SPECS, Spec

Parameters = dict[str, Any]


def parameters(shapes: dict[str, tuple[int, ...]]) -> Parameters:
    random = np.random.default_rng(0)

    def value(name: str, shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return jnp.ones(shape) if name.endswith("scale") else jnp.zeros(shape)
        return jnp.asarray(
            random.standard_normal(shape, dtype=np.float32) / np.sqrt(np.prod(shape[:-1]), dtype=np.float32)
        )

    return {name: value(name, shape) for name, shape in shapes.items()}


def linear(p: Parameters, name: str, x: Any) -> Any:
    return x @ p[f"{name}.w"] + p[f"{name}.b"]


def mlp(spec: Spec) -> tuple[Parameters, Callable[[Parameters, Any], Any]]:
    layers = list(zip(spec.sizes[:-1], spec.sizes[1:], strict=True))
    shapes: dict[str, tuple[int, ...]] = {f"{i}.w": shape for i, shape in enumerate(layers)}
    shapes |= {f"{i}.b": shape[1:] for i, shape in enumerate(layers)}

    def forward(p: Parameters, x: Any) -> Any:
        for i in range(len(layers)):
            x = linear(p, str(i), x if i == 0 else jax.nn.relu(x))
        return x

    return parameters(shapes), forward


def lenet(spec: Spec) -> tuple[Parameters, Callable[[Parameters, Any], Any]]:
    shapes = {
        "c1.w": (5, 5, 1, 20), "c1.b": (20,), "c2.w": (5, 5, 20, 50), "c2.b": (50,),
        "f1.w": (800, 500), "f1.b": (500,), "f2.w": (500, 10), "f2.b": (10,),
    }  # fmt: skip

    def block(p: Parameters, name: str, x: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, p[f"{name}.w"], (1, 1), "VALID", dimension_numbers=layout)
        x = jnp.tanh(x + p[f"{name}.b"])
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def forward(p: Parameters, x: Any) -> Any:
        x = block(p, "c2", block(p, "c1", x.transpose(0, 2, 3, 1)))
        return linear(p, "f2", jnp.tanh(linear(p, "f1", x.reshape(x.shape[0], -1))))

    return parameters(shapes), forward


def gpt(spec: Spec) -> tuple[Parameters, Callable[[Parameters, Any], Any]]:
    width, heads = spec.width, spec.heads
    shapes: dict[str, tuple[int, ...]] = {
        "tokens.w": (spec.classes, width),
        "places.w": (spec.tokens, width),
        "head.w": (width, spec.classes),
    }
    for i in range(spec.layers):
        for name, outputs, inputs in (("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            shapes |= {f"{i}.{name}.w": (inputs * width, outputs * width), f"{i}.{name}.b": (outputs * width,)}
    for name in ["norm", *(f"{i}.{norm}" for i in range(spec.layers) for norm in ("norm1", "norm2"))]:
        shapes |= {f"{name}.scale": (width,), f"{name}.b": (width,)}

    def norm(p: Parameters, name: str, x: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.scale"] + p[f"{name}.b"]

    def forward(p: Parameters, x: Any) -> Any:
        x = p["tokens.w"][x] + p["places.w"]
        for i in range(spec.layers):
            q, k, v = jnp.split(linear(p, f"{i}.qkv", norm(p, f"{i}.norm1", x)), 3, -1)
            q, k, v = (part.reshape(*part.shape[:2], heads, width // heads) for part in (q, k, v))
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(p, f"{i}.out", y.reshape(x.shape))
            y = jax.nn.gelu(linear(p, f"{i}.up", norm(p, f"{i}.norm2", x)), approximate=False)
            x = x + linear(p, f"{i}.down", y)
        return (norm(p, "norm", x) @ p["head.w"]).reshape(-1, spec.classes)

    return parameters(shapes), forward


class Steps:
    def __init__(self, name: str, precision: str) -> None:
        of_products = {"f32": "highest", "TF32": "tensorfloat32", "bf16": "default"}[precision]
        jax.config.update("jax_default_matmul_precision", of_products)
        spec, random = SPECS[name], np.random.default_rng(1)
        begin = time.perf_counter()
        p, forward = {"mlp": mlp, "lenet": lenet, "gpt": gpt}[spec.kind](spec)
        rate, momentum = spec.options["learning_rate"], spec.options["momentum"]

        def narrow(value: Any) -> Any:
            return value.astype(jnp.bfloat16) if jnp.issubdtype(value.dtype, jnp.floating) else value

        def loss_of(p: Parameters, x: Any, label: Any) -> Any:
            if precision == "bf16":
                p, x = jax.tree_util.tree_map(narrow, (p, x))
            logits = jax.nn.log_softmax(forward(p, x).astype(jnp.float32))
            return -jnp.take_along_axis(logits, label[:, None], 1).mean()

        @partial(jax.jit, donate_argnums=(0, 1))
        def update(p: Parameters, v: Parameters, x: Any, label: Any) -> tuple[Parameters, Parameters, Any]:
            loss, g = jax.value_and_grad(loss_of)(p, x, label)
            v = jax.tree_util.tree_map(lambda a, b: momentum * a + b, v, g)
            return jax.tree_util.tree_map(lambda a, b: a - rate * b, p, v), v, loss

        self.update, self.p, self.v = update, p, jax.tree_util.tree_map(jnp.zeros_like, p)
        if spec.kind == "gpt":
            x = random.integers(spec.classes, size=spec.x_shape, dtype=np.int32)
        else:
            x = random.standard_normal(spec.x_shape, dtype=np.float32)
        self.host = (x, random.integers(spec.classes, size=spec.rows, dtype=np.int32))
        self.resident = tuple(map(jnp.asarray, self.host))
        for _ in range(2):
            self.step(self.resident).block_until_ready()
        self.compile_seconds = time.perf_counter() - begin

    def step(self, batch: tuple[Any, ...]) -> Any:
        self.p, self.v, loss = self.update(self.p, self.v, *batch)
        return loss

    def ready(self) -> dict[str, Any]:
        return {"compile_seconds": self.compile_seconds}

    def run(self, steps: int) -> dict[str, Any]:
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            float(self.step(self.host))
            seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(steps):
            loss = self.step(self.resident)
        loss.block_until_ready()
        answer = {"seconds": seconds, "resident": (time.perf_counter() - begin) / steps}
        peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        return answer | ({"peak_bytes": peak} if peak else {})


if __name__ == "__main__":
    serve(lambda: Steps(sys.argv[1], sys.argv[2]))
