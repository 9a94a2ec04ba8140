"""Import of PyTorch modules, export back to them, and weights in safetensors files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import lockstep as ls
from ranks import run_in_threads
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


def stepped(module: nn.Module, optimizer: torch.optim.Optimizer, *inputs: torch.Tensor) -> float:
    """A training step in PyTorch of a module that computes its loss. Returns the loss."""
    optimizer.zero_grad()
    loss = module(*inputs)
    loss.backward()
    optimizer.step()
    return loss.item()


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


class Constants(nn.Module):
    """Tensors that are not parameters, in all the places where modules can have them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Parameter(torch.tensor([0.5, 1.0, 2.0]), requires_grad=False)
        self.w, self.one = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5])
        self.listed, self.named = [torch.tensor([0.5, 0.25, 2.0])], {"anchor": torch.tensor([[0.1, 0.2, 0.3]])}
        self.register_buffer("table", torch.tensor([0.3, 0.2, 0.1]))
        self.register_buffer("hidden", torch.tensor([2.0, 1.0, 0.5]), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.fc(x) * self.w + self.table * self.hidden) * self.one * self.frozen
        y = y * self.listed[0] + self.named["anchor"] + torch.tensor([0.1, 0.2, 0.3])
        y = y - torch.as_tensor(np.array([1.0, 2.0, 3.0], np.float32)) * x.new_tensor([0.5, 0.25, 0.125])
        return nn.functional.conv1d(y[:, None], torch.tensor([[[0.25, 0.5, 0.25]]]), padding=1)[:, 0]


def losses_in_pytorch(module: nn.Module, x: torch.Tensor, label: torch.Tensor, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], 0.5)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(module(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("source", ["module", "file"])
def test_parameters_are_trained_and_no_other_tensor(
    source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(3)
    module, x, label = Constants(), torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    if source == "module":
        model = ls.from_torch(module, x, output_names=["y"])
    else:
        path = tmp_path / "constants.onnx"
        module.frozen.requires_grad_(True)  # the file does not say that it is frozen
        torch.onnx.export(module, (x,), path, dynamo=True, optimize=False, verbose=False, output_names=["y"])
        model = ls.load_onnx(path)
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("y", "label"), ls.optim.SGD(0.5))
    assert set(step.trained) == {name for name, each in module.named_parameters() if each.requires_grad}
    exe = ls.compile(step)
    ours = [float(exe(x=x, label=label)["loss"]) for _ in range(5)]
    np.testing.assert_allclose(ours, losses_in_pytorch(module, x, label, 5), rtol=1e-5)
    assert "does not say" not in caplog.text


def test_what_only_looks_like_a_parameter_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        supposed (float[4, 2] x) => (float[4, 2] y) <float[2, 2] w = {1, 2, 3, 4}, float[2] table = {1, 2}>
        { z = MatMul(x, w)  y = Add(z, table) }""")
    graph = ls.load_onnx(model)
    loss, optimizer = ls.loss.softmax_cross_entropy("y", "label"), ls.optim.SGD(0.5)
    for _ in range(2):
        ls.train_step(graph, loss, optimizer)
    assert (
        caplog.text.count("supposed: the file does not say which initializers are parameters; table, w are trained")
        == 1
    )
    caplog.clear()
    ls.train_step(graph, loss, optimizer, trained=["*"])
    ls.train_step(graph, loss, optimizer, trained=["w"])
    ls.train_step(ls.load_onnx(model, constants=["table", "w"]), loss, optimizer, trained=["w"])
    assert caplog.text == ""


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


def test_what_has_no_batch_and_dimensions_by_place() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return x * by

    model = ls.from_torch(Scaled(), [torch.randn(2, 3), torch.tensor(2.0)], dims={"batch": 4}, split={"x": 1})
    assert {info.name: info.shape for info in model.inputs} == {"x": (4, 3), "by": ()}
    assert "%x: f32[4,3] split(1)" in str(model)
    placed = ls.from_torch(nn.Tanh(), torch.randn(4, 3), dims={"input:0": 4})
    assert [info.shape for info in placed.inputs] == [(4, 3)]


def test_large_modules_go_through_files_and_come_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Net()
    module.out.weight.requires_grad_(False)
    options = {"dims": {"batch": 4}, "split": {}, "output_names": ["logits"]}
    whole = ls.from_torch(module, torch.randn(2, 1, 4, 4), **options)
    monkeypatch.setattr("lockstep._torch.torch_modules._MAX_BYTES_IN_MEMORY", 0)
    through_files = ls.from_torch(module, torch.randn(2, 1, 4, 4), **options)
    assert through_files.constants == whole.constants == ["out.weight"]
    assert "split(" not in str(through_files)
    for info in whole.states:
        np.testing.assert_array_equal(through_files.initial_value(info.name), whole.initial_value(info.name))


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
    safetensors.save_file({**tensors, "norm.num_batches_tracked": other.norm.num_batches_tracked}, file)
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


def test_a_training_step_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    model = ls.parse(
        "graph @g(%x: f32[4,3], state %w: f32[3,2]) -> (y: f32[4,2]) {\n  %y = matmul %x, %w : f32[4,2]\n  return %y\n}"
    )
    step = ls.train_step(model, ls.loss.mean_squared_error("y"), ls.optim.AdamW(0.1))
    batch = {"x": np.ones((4, 3), np.float32), "target": np.ones((4, 2), np.float32)}
    exe = ls.compile(step)
    exe(**batch)
    ls.save_weights(exe, tmp_path / "step.safetensors")
    again = ls.compile(ls.load_weights(step, tmp_path / "step.safetensors"))
    assert again.state["optimizer/step"].shape == ()
    assert [again(**batch)["loss"] for _ in range(3)] == [exe(**batch)["loss"] for _ in range(3)]


# Parts that the exporter leaves out silently


class Keeps(nn.Module):
    """Detaches values from the gradient, in the way of `how`."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.fc, self.target = how, nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        if self.how == "detach":
            return (y - self.target(x).detach()).square().mean()
        if self.how == "no_grad":
            with torch.no_grad():
                target = self.target(x)
            return (y - target).square().mean()
        if self.how == "enable_grad":
            with torch.no_grad():
                target = self.target(x)
                with torch.enable_grad():
                    again = self.fc(x)
                target = again * target
            return (y - target + again).square().mean()
        if self.how == "function":
            return Reversed.apply(y).mean()
        with torch.no_grad():  # contains no parameter
            scale = x.abs().mean(1, keepdim=True)
        return (y * scale + y.detach().argmax(1, keepdim=True)).mean()  # an index has no gradient either


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


def test_gradients_of_ones_own_are_refused_unless_nobody_wants_them() -> None:
    module, x = Keeps("function"), torch.randn(4, 3)
    with raises("from_torch: Keeps has custom gradients, of Reversed", 'own_gradients="ignore"'):
        ls.from_torch(module, x, dims={"batch": 4})
    model = ls.from_torch(module, x, dims={"batch": 4}, output_names=["y"], own_gradients="ignore")
    assert ls.compile(model)(x=x)["y"] == pytest.approx(module(x).item(), abs=1e-6)
    with raises("own_gradients is 'keep'"):
        ls.from_torch(module, x, dims={"batch": 4}, own_gradients="keep")


@pytest.mark.parametrize("how", ["detach", "no_grad", "enable_grad", "harmless"])
def test_values_without_gradient_have_none(how: str) -> None:
    module, x = Keeps(how), torch.randn(4, 3)
    model = ls.from_torch(module, x, dims={"batch": 4}, output_names=["y"])
    exe = ls.compile(ls.train_step(model, ls.loss.result("y"), ls.optim.SGD(0.1, weight_decay=0.5)))
    optimizer = torch.optim.SGD(module.parameters(), 0.1, weight_decay=0.5)
    for _ in range(2):
        assert exe(x=x)["loss"] == pytest.approx(stepped(module, optimizer, x), abs=1e-6)
    for name, parameter in module.named_parameters():
        if name in exe.state:
            np.testing.assert_allclose(exe.state[name], parameter.detach(), atol=1e-6, err_msg=name)


@pytest.mark.parametrize("extra", [0, 1, 2, 3])
def test_what_output_padding_adds_is_what_padding_took(extra: int) -> None:
    class Transposed(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return nn.functional.conv_transpose2d(
                x, w, stride=(1, 2), padding=(2, 3), dilation=4, output_padding=(extra, 3 - extra)
            )

    x, w = torch.randn(1, 2, 4, 5), torch.randn(2, 3, 5, 3)
    exe = ls.compile(ls.from_torch(Transposed(), (x, w), output_names=["y"]))
    np.testing.assert_allclose(exe(x=x, w=w)["y"], Transposed()(x, w), rtol=1e-5, atol=1e-5)


def test_options_that_the_exporter_drops_are_refused() -> None:
    class Means(nn.Module):
        def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return torch.zeros(4, 3).scatter_reduce(0, label[:, None].expand(-1, 3), x, "mean")

    class Margins(nn.Module):
        def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return nn.functional.multilabel_margin_loss(x, label[:, None].expand(-1, 3))

    class Pool(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.avg_pool2d(x, 2, divisor_override=3)

    inputs = (torch.randn(4, 3), torch.tensor([0, 1, 2, 1]))
    with raises("from_torch: Pool has an average pooling with divisor_override = 3 (test_torch.py:"):
        ls.from_torch(Pool(), torch.randn(1, 1, 4, 4))
    with raises("from_torch: Margins has multilabel_margin_loss (test_torch.py:"):
        ls.from_torch(Margins(), inputs)
    with raises('from_torch: Means has scatter_reduce with reduce = "mean" (test_torch.py:'):
        ls.from_torch(Means(), inputs)


def test_buffers_that_change_are_refused() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.register_buffer("average", torch.zeros(3))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1  # no result depends on it
            if self.training:
                self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return self.fc(x - self.average)

    with raises("from_torch: Average changes its buffer average in forward", "evaluation mode"):
        ls.from_torch(Average(), torch.randn(4, 3), dims={"batch": 4})
    assert ls.from_torch(Average().eval(), torch.randn(4, 3), dims={"batch": 4}).constants == ["average"]


def test_numbers_and_parameters_that_change_in_forward(caplog: pytest.LogCaptureFixture) -> None:
    class Changes(nn.Module):
        def __init__(self, scales: bool) -> None:
            super().__init__()
            self.weight, self.calls, self.scales = nn.Parameter(torch.ones(3)), 0, scales
            self.columns = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.columns = x.shape[1]  # the same value as before
            if self.scales:
                with torch.no_grad():
                    self.weight.mul_(0.9)
            return x * self.weight * self.calls

    ls.from_torch(Changes(False), torch.randn(4, 3), dims={"batch": 4})
    warnings = [record.getMessage() for record in caplog.records if record.name == "lockstep"]
    assert len(warnings) == 1 and warnings[0].startswith(
        "from_torch: Changes changes its attribute calls in forward (test_"
    )
    assert warnings[0].endswith("): it stays 1")
    with raises("from_torch: Changes changes its parameter weight in forward"):
        ls.from_torch(Changes(True), torch.randn(4, 3), dims={"batch": 4})


def test_a_normalisation_that_is_called_twice() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (self.net(a) - 2 * self.net(b)).square().mean()

    module, inputs = Pairs(), {"a": torch.randn(6, 3), "b": torch.randn(6, 3) + 1}
    model = ls.from_torch(module, inputs, dims={"batch": 6}, output_names=["y"])
    exe = ls.compile(ls.train_step(model, ls.loss.result("y"), ls.optim.SGD(0.1)))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(2):
        loss = module(**inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert exe(**inputs)["loss"] == pytest.approx(loss.item(), abs=1e-5)
    norm = module.net[1]
    np.testing.assert_allclose(exe.state["net.1.running_mean"], norm.running_mean, atol=1e-5)
    np.testing.assert_allclose(exe.state["net.1.running_var"], norm.running_var, atol=1e-5)


@pytest.mark.parametrize("given", ["one tensor twice", "a parameter", "a buffer"])
def test_example_inputs_are_values_of_their_own(given: str) -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))
            self.register_buffer("table", torch.randn(3, 3))

        def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> torch.Tensor:
            return (x @ self.weight - self.table.sum(0)) @ more["y"].T

    torch.manual_seed(7)
    module, rows = Product(), torch.randn(3, 3)
    example = {"one tensor twice": rows, "a parameter": module.weight, "a buffer": module.table}[given]
    model = ls.from_torch(module, [example, {"y": rows}], dims={"batch": 3}, output_names=["z"])
    exe = ls.compile(ls.train_step(model, ls.loss.mean_squared_error("z", "target"), ls.optim.SGD(0.1)))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    x, y, target = torch.randn(3, 3, 3)
    assert [(each.name, each.shape) for each in model.inputs] == [("x", (3, 3)), ("more_y", (3, 3))]
    for _ in range(2):
        loss = nn.functional.mse_loss(module(x, {"y": y}), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert exe(x=x, more_y=y, target=target)["loss"] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_loss_of_the_module_may_be_of_pairs_of_the_batch(ranks: int) -> None:
    class Contrastive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            a, b = (nn.functional.normalize(self.fc(each)) for each in (x, y))
            return nn.functional.cross_entropy(a @ b.T * 5, torch.arange(x.shape[0]))

    torch.manual_seed(9)
    module, x, y = Contrastive(), torch.randn(6, 3), torch.randn(6, 3)
    model = ls.from_torch(module, [x[:2], y[:2]], dims={"batch": 6}, output_names=["y0"])
    step = ls.train_step(model, ls.loss.result("y0"), ls.optim.SGD(0.5))

    def losses(world: ls.Communicator) -> list[float]:
        exe, mine = (
            ls.compile(step, world=world, threads=1),
            slice(world.rank * 6 // ranks, (world.rank + 1) * 6 // ranks),
        )
        return [float(exe(x=x[mine], y=y[mine])["loss"]) for _ in range(3)]

    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    expected = [stepped(module, optimizer, x, y) for _ in range(3)]
    found = run_in_threads(ranks, losses)
    assert len(found) == ranks and found == [pytest.approx(expected, rel=1e-4)] * ranks


def test_tensors_in_a_dict_have_the_batch() -> None:
    class Sum(nn.Module):
        def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
            return given["a"] + given["b"]

    rows = torch.randn(2, 3)
    model = ls.from_torch(Sum(), [{"a": rows, "b": rows}], dims={"batch": 6}, output_names=["y"])
    assert {info.name: info.shape for info in model.inputs} == {"given_a": (6, 3), "given_b": (6, 3)}
    assert all(info.placements for info in model.inputs)


def test_arguments_that_are_no_tensors() -> None:
    class Sum(nn.Module):
        def forward(self, scale: float, x: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
            return x * scale + more[0] + more[1]

    rows = torch.randn(2, 3)
    model = ls.from_torch(Sum(), [2.0, rows, [rows, rows]], dims={"batch": 6}, output_names=["y"])
    assert {info.name: info.shape for info in model.inputs} == {"x": (6, 3), "more_0": (6, 3), "more_1": (6, 3)}
    assert all(info.placements for info in model.inputs)


def test_names_without_results() -> None:
    with raises("output_names has 2 names, Identity 1 results"):
        ls.from_torch(nn.Identity(), torch.randn(4, 3), output_names=["a", "b"])
