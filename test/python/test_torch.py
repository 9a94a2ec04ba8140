"""From PyTorch modules and back, and weights in safetensors files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from test_errors import raises

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    """A convolution with batch normalisation, and two layers that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.fc1, self.fc2, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.fc2.weight = self.fc1.weight

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(torch.relu(self.norm(self.conv(image))), 1)
        return self.out(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


def step_of(module: nn.Module, batch: int = 6) -> ls.Graph:
    model = ls.from_torch(module, torch.randn(2, 1, 4, 4), dims={"batch": batch}, output_names=["logits"])
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1))


def test_a_module_is_one_call_away_and_trains_as_it_does_at_home() -> None:
    torch.manual_seed(1)
    module = Net()
    images, label = torch.randn(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    step = step_of(module)
    assert [info.name for info in step.inputs] == ["image", "label"]
    assert {"conv.weight", "norm.running_mean", "fc1.weight", "out.bias"} <= {info.name for info in step.states}
    exe = ls.compile(step)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(module(images), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert exe(image=images, label=label)["loss"] == pytest.approx(loss.item(), abs=1e-5)
    trained = Net()
    ls.to_torch(exe, trained)
    for (name, ours), theirs in zip(trained.named_parameters(), module.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach(), theirs.detach(), atol=1e-5, err_msg=name)
    np.testing.assert_allclose(trained.norm.running_var, module.norm.running_var, atol=1e-5)
    assert trained.fc2.weight is trained.fc1.weight


def test_what_pytorch_would_not_train_is_constant() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.frozen, self.norm = nn.Linear(3, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
            self.frozen.requires_grad_(False)
            self.register_buffer("table", torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.frozen(self.fc(x) + self.table))

    module = Table()
    model = ls.from_torch(module, torch.randn(2, 3), dims={"batch": 4}, output_names=["y"])
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("y", "label"), ls.optim.SGD(0.5))
    assert sorted(step.trained) == ["fc.bias", "fc.weight", "norm.bias", "norm.weight"]
    assert sorted(model.constants) == ["frozen.bias", "frozen.weight", "table"]
    exe = ls.compile(step)
    exe(x=torch.randn(4, 3), label=torch.tensor([0, 1, 2, 3]))
    before = module.frozen.weight.clone()
    ls.to_torch(exe, module)
    assert torch.equal(module.frozen.weight, before)
    np.testing.assert_array_equal(module.fc.weight.detach(), exe.state["fc.weight"])


def test_inputs_by_name_and_other_dimensions() -> None:
    class Two(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a @ b

    length = torch.export.Dim("length")
    model = ls.from_torch(
        Two(),
        {"b": torch.randn(5, 3), "a": torch.randn(4, 5)},
        dims={"length": 7},
        dynamic_shapes={"b": {0: length}, "a": {1: length}},
    )
    assert {info.name: info.shape for info in model.inputs} == {"a": (4, 7), "b": (7, 3)}


def test_what_cannot_be_exported_says_so() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with raises("torch cannot export Branches: "):
        ls.from_torch(Branches(), torch.randn(2, 3))
    with raises("the example inputs do not fit Net.forward"):
        ls.from_torch(Net(), [torch.randn(2, 1, 4, 4)] * 2)
    with raises("dims has the symbols a, b", "dynamic_shapes"):
        ls.from_torch(Net(), torch.randn(2, 1, 4, 4), dims={"a": 4, "b": 4})
    with raises("the module is 3, expected a torch.nn.Module"):
        ls.from_torch(3, torch.randn(2))  # type: ignore[arg-type]


def test_a_module_that_does_not_fit_stays_as_it_was() -> None:
    module, exe = Net(), ls.compile(step_of(Net()))
    module.extra = nn.Linear(2, 2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with raises("the executable has no state extra.weight, which is a parameter of Net"):
        ls.to_torch(exe, module)
    narrow = Net()
    narrow.out = nn.Linear(16, 2)
    with raises("out.weight is [2, 16], the state [3, 16]"):
        ls.to_torch(exe, narrow)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_weights_by_name(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    module = Net()
    model = ls.from_torch(module, torch.randn(2, 1, 4, 4), dims={"batch": 2}, output_names=["logits"])
    other = Net()
    tensors = {
        name: value
        for name, value in other.state_dict().items()
        if name not in ("norm.num_batches_tracked", "fc2.weight")
    }
    file = tmp_path / "weights.safetensors"
    safetensors.save_file(tensors, file)
    loaded = ls.load_weights(model, file)
    for name, value in tensors.items():
        np.testing.assert_array_equal(loaded.initial_value(name), value)
        assert not np.array_equal(model.initial_value("conv.weight"), loaded.initial_value("conv.weight"))
    exe = ls.compile(loaded)
    images = torch.randn(2, 1, 4, 4)
    other.eval()
    np.testing.assert_allclose(exe(image=images)["logits"], other(images).detach(), atol=1e-5)
    ls.save_weights(exe, tmp_path / "again.safetensors")
    again = safetensors.load_file(tmp_path / "again.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in again)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    graph = ls.parse(
        "graph @g(%x: f32[2], state %w: f32[2], state %b: f32[2]) -> (y: f32[2]) {\n  %z = mul %x, %w : f32[2]\n  %y = add %z, %b : f32[2]\n  return %y\n}"
    )
    file = tmp_path / "w.safetensors"

    def saved(**values: np.ndarray) -> Path:
        safetensors.save_file(values, file)
        return file

    two = np.ones(2, np.float32)
    with raises(str(file), "extra is no state of @g; its states are b, w"):
        ls.load_weights(graph, saved(w=two, b=two, extra=two))
    with raises(str(file), "no value for the state b of @g"):
        ls.load_weights(graph, saved(w=two))
    with raises(str(file), "the value of state w is f32[3], the state f32[2]"):
        ls.load_weights(graph, saved(w=np.ones(3, np.float32), b=two))
    assert ls.load_weights(graph, saved(v=two), rename={"v": "w"}, strict=False).initial_value("w").tolist() == [1, 1]
    file.write_bytes(b"damaged")
    with raises(str(file)):
        ls.load_weights(graph, file)
    with raises("nowhere.safetensors"):
        ls.load_weights(graph, tmp_path / "nowhere.safetensors")
    exe = ls.compile(graph)
    with raises("No such file or directory"):
        ls.save_weights(exe, tmp_path / "no" / "folder")
