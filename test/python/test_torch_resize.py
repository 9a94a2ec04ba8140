"""Resizing in a module: by a size or a scale, whole or not, up and down, in each mode, with PyTorch's results."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from test_errors import raises

torch = pytest.importorskip("torch")
nn = torch.nn

SHAPES = {
    "linear": (2, 2, 7),
    "bilinear": (2, 2, 7, 5),
    "bicubic": (2, 1, 7, 5),
    "trilinear": (2, 1, 4, 5, 3),
    "nearest": (2, 2, 7, 5),
    "nearest-exact": (2, 2, 7, 5),
    "area": (2, 2, 7, 5),
}
ALIGNED, ANTIALIASED = ("linear", "bilinear", "bicubic", "trilinear"), ("bilinear", "bicubic")


def resizings(mode: str) -> list[dict[str, Any]]:
    """The options of interpolate in this mode, except those for which ONNX has no coordinates."""
    rank = len(SHAPES[mode]) - 2
    sizes = [{"size": tuple(extent + 3 for extent in SHAPES[mode][2:])}, {"size": (4, 3, 2)[:rank]}]
    scales = [
        {"scale_factor": scale, "recompute_scale_factor": again}
        for scale, again in itertools.product((0.6, 1.5, 1.7, 2.0), (None, True))
    ]
    aligned = ({"align_corners": False}, {"align_corners": True}) if mode in ALIGNED else ({},)
    antialiased = ({}, {"antialias": True}) if mode in ANTIALIASED else ({},)
    combined = [{"mode": mode, **a, **b, **c} for a, b, c in itertools.product(sizes + scales, aligned, antialiased)]
    return [each for each in combined if not (each.get("align_corners") and each.get("antialias"))]


class Resized(nn.Module):
    """One value, resized in many ways. Its results are y0, y1, ..."""

    def __init__(self, value: torch.Tensor, ways: list[dict[str, Any]]) -> None:
        super().__init__()
        self.value, self.ways = nn.Parameter(value), ways

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.nn.functional.interpolate(self.value + x, **way) for way in self.ways)


def agree(module: Resized, **options: Any) -> None:
    """Compares the results, and the gradient of the sum of their squares."""
    x = torch.zeros(module.value.shape)
    expected = module(x)
    names = [f"y{i}" for i in range(len(expected))]
    model = ls.from_torch(module, x, output_names=names, **options)
    ours = ls.compile(model)(x=x)
    for name, way, each in zip(names, module.ways, expected, strict=True):
        np.testing.assert_allclose(ours[name], each.detach(), rtol=1e-4, atol=1e-5, err_msg=str(way))
    losses = [ls.loss.mean_squared_error(name, f"t{i}") for i, name in enumerate(names)]
    zeros = {f"t{i}": np.zeros(each.shape, np.float32) for i, each in enumerate(expected)}
    gradient = ls.compile(ls.train_step(model, sum(losses[1:], losses[0]), None))(x=x, **zeros)["grad/value"]
    sum(each.square().mean() for each in expected).backward()
    np.testing.assert_allclose(gradient, module.value.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", SHAPES)
def test_every_way_of_resizing(mode: str) -> None:
    torch.manual_seed(5)
    agree(Resized(torch.randn(SHAPES[mode]), resizings(mode)))


def test_scales_whose_products_are_rounded() -> None:
    """100 * 1.15 is less than 115 in f64 but not in f32; 3 * (1 / 0.6) is 5 in f32, and less in f64."""
    assert int(100 * 1.15) == 114 and int(np.float32(100) * np.float32(1.15)) == 115
    ways = [{"mode": mode, "scale_factor": scale} for mode in ("linear", "nearest") for scale in (1.15, 0.29, 0.6, 1.1)]
    agree(Resized(torch.randn(1, 1, 100), ways))


def test_a_batch_that_is_open() -> None:
    ways = [{"mode": "bilinear", "scale_factor": 1.5, "align_corners": True}, {"mode": "nearest", "scale_factor": 0.6}]
    module = Resized(torch.randn(1, 2, 7, 5), ways)
    model = ls.from_torch(module, torch.randn(2, 2, 7, 5), dims={"batch": 3}, output_names=["a", "b"])
    x = torch.randn(3, 2, 7, 5)
    ours = ls.compile(model)(x=x)
    for name, expected in zip("ab", module(x), strict=True):
        np.testing.assert_allclose(ours[name], expected.detach(), rtol=1e-4, atol=1e-5)


def test_what_onnx_has_no_coordinates_for() -> None:
    x = torch.randn(1, 2, 7, 5)
    way = {"mode": "bilinear", "scale_factor": 1.5}
    with raises("Resized has interpolate with antialias=True and align_corners=True", "test_torch_resize.py:"):
        ls.from_torch(Resized(x, [way | {"align_corners": True, "antialias": True}]), x)

    class Open(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.interpolate(x, **way)

    height = {"x": {2: torch.export.Dim("height", min=4)}}
    with raises("Open has interpolate with a scale_factor of a size that dynamic_shapes makes symbolic"):
        ls.from_torch(Open(), x, dims={"height": 7}, dynamic_shapes=height)
    way = {"mode": "bilinear", "scale_factor": 2}
    model = ls.from_torch(Open(), x, dims={"height": 9}, dynamic_shapes=height, output_names=["y"])
    y = torch.randn(1, 2, 9, 5)
    np.testing.assert_allclose(ls.compile(model)(x=y)["y"], Open()(y), rtol=1e-4, atol=1e-5)
