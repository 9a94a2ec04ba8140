"""The recipes of docs/frameworks.md, against PyTorch: groups, losses of one's own, averages, PyTorch's optimizers, unfreezing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lockstep as ls

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

GENERATOR = torch.Generator().manual_seed(0)
X, LABEL = torch.randn(8, 16, 6, generator=GENERATOR), torch.randint(0, 4, (8, 16), generator=GENERATOR)
LOSS = ls.loss.softmax_cross_entropy("logits", "label")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 4))


def imported(module: nn.Module) -> ls.Graph:
    return ls.from_torch(module, X[0], dims={"batch": 16}, output_names=["logits"])


def torch_step(module: nn.Module, optimizer: Any, step: int) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(module(X[step]), LABEL[step])
    loss.backward()
    optimizer.step()
    return loss.item()


def called(exe: ls.Executable, step: int) -> float:
    return float(exe(input=X[step], label=LABEL[step])["loss"])


def assert_equal(exe: ls.Executable, module: nn.Module, atol: float = 1e-5) -> None:
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(exe.state[name], parameter.detach(), atol=atol, err_msg=name)


def test_parameters_without_decay() -> None:
    module = net()
    model = imported(module)
    without_decay = tuple(name for name, parameter in module.named_parameters() if parameter.ndim <= 1)
    groups = {without_decay: ls.optim.SGD(0.1)}
    exe = ls.compile(ls.train_step(model, LOSS, ls.optim.SGD(0.1, weight_decay=0.1), groups=groups))
    decayed = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD([{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=0.1)
    for step in range(8):
        if step == 4:
            exe.set(learning_rate=0.02)
            for group in optimizer.param_groups:
                group["lr"] = 0.02
        assert called(exe, step) == pytest.approx(torch_step(module, optimizer, step), abs=1e-5)
    assert_equal(exe, module)


def test_a_loss_of_ones_own() -> None:
    class WithLoss(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.net(x)
            return {"loss": F.cross_entropy(logits, label) + 0.1 * logits.square().mean(), "logits": logits}

    module, wrapper = net(), WithLoss(net())
    model = ls.from_torch(wrapper, (X[0], LABEL[0]), dims={"batch": 16})
    exe = ls.compile(ls.train_step(model, ls.loss.result("loss"), ls.optim.SGD(0.1)))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        logits = module(X[step])
        loss = F.cross_entropy(logits, LABEL[step]) + 0.1 * logits.square().mean()
        loss.backward()
        optimizer.step()
        assert float(exe(x=X[step], label=LABEL[step])["loss"]) == pytest.approx(loss.item(), abs=1e-5)
    ls.to_torch(exe, wrapper)
    for name, parameter in wrapper.net.named_parameters():
        torch.testing.assert_close(parameter, module.get_parameter(name), atol=1e-5, rtol=0)


def test_averaged_weights_go_into_a_module() -> None:
    module = net()
    model = imported(module)
    swa = torch.optim.swa_utils
    average = swa.AveragedModel(module, multi_avg_fn=swa.get_ema_multi_avg_fn(0.75))
    exe = ls.compile(ls.train_step(model, LOSS, ls.optim.SGD(0.1), average=ls.average.exponential(0.75)))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for step in range(8):
        called(exe, step)
        torch_step(module, optimizer, step)
        average.update_parameters(module)
    averaged = ls.compile(model)
    averaged.state.assign(exe.state.averaged())
    written = net()
    ls.to_torch(averaged, written)
    for name, parameter in written.named_parameters():
        torch.testing.assert_close(parameter, average.module.get_parameter(name), atol=1e-5, rtol=0)


def test_going_on_from_an_optimizer_of_pytorch() -> None:
    for make, ours, names in (
        (lambda p: torch.optim.Adam(p, 0.01), ls.optim.Adam(0.01), {"adam_m": "exp_avg", "adam_v": "exp_avg_sq"}),
        (lambda p: torch.optim.AdamW(p, 0.01), ls.optim.AdamW(0.01), {"adam_m": "exp_avg", "adam_v": "exp_avg_sq"}),
        (lambda p: torch.optim.SGD(p, 0.1, 0.9), ls.optim.SGD(0.1, momentum=0.9), {"momentum": "momentum_buffer"}),
    ):
        module = net()
        torch_optimizer = make(module.parameters())
        for step in range(4):
            torch_step(module, torch_optimizer, step)
        exe = ls.compile(ls.train_step(imported(module), LOSS, ours))
        for name, parameter in module.named_parameters():
            kept = torch_optimizer.state[parameter]
            for state, torch_name in names.items():
                exe.state[f"{name}/{state}"] = kept[torch_name].numpy()
            if "step" in kept:
                exe.state["optimizer/step"], exe.step = np.array(int(kept["step"])), int(kept["step"])
        for step in range(4, 8):
            assert called(exe, step) == pytest.approx(torch_step(module, torch_optimizer, step), abs=1e-5)
        assert_equal(exe, module)


def test_layers_are_unfrozen() -> None:
    """SGD goes on as in PyTorch; Adam's first update of an unfrozen layer has another size than PyTorch's, as documented."""
    torch_sgd, torch_adam = torch.optim.SGD, torch.optim.Adam
    for make, ours in (
        (lambda p: torch_sgd(p, 0.1, 0.9), ls.optim.SGD(0.1, momentum=0.9)),
        (lambda p: torch_adam(p, 0.01), ls.optim.Adam(0.01)),
    ):
        module = net()
        model = imported(module)
        head = ls.compile(ls.train_step(model, LOSS, ours, frozen=["0.*"]))
        optimizer = make([p for name, p in module.named_parameters() if not name.startswith("0.")])
        for step in range(4):
            assert called(head, step) == pytest.approx(torch_step(module, optimizer, step), abs=1e-5)
        whole = ls.compile(ls.train_step(model, LOSS, ours))
        whole.state.assign({**whole.state, **head.state})
        whole.step = head.step
        optimizer.add_param_group({"params": list(module[0].parameters())})
        before = module[0].weight.detach().clone()
        assert called(whole, 4) == pytest.approx(torch_step(module, optimizer, 4), abs=1e-5)
        if isinstance(ours, ls.optim.SGD):
            for step in range(5, 8):
                assert called(whole, step) == pytest.approx(torch_step(module, optimizer, step), abs=1e-5)
            assert_equal(whole, module)
        else:
            ratio = (whole.state["0.weight"] - before.numpy()) / (module[0].weight.detach() - before).numpy()
            assert whole.state["optimizer/step"] == 5
            expected = (0.1 / (1 - 0.9**5)) / np.sqrt(0.001 / (1 - 0.999**5))  # 0.55; 3.16 after many steps
            np.testing.assert_allclose(np.median(ratio), expected, rtol=1e-2)
