"""PyTorch in the check: losses to compare with, and a contestant of the measurements. Runs in a Python that has torch.

    torch_peer.py losses NETWORK FILE.npz STEPS DEVICE      writes weights, batches and losses, in f64, f32 and bf16
    torch_peer.py steps NETWORK HOW DEVICE PRECISION        a contestant (contestant.py); HOW is eager, channels-last, default, …
    torch_peer.py about                                     versions, as JSON

HOW beyond eager and channels-last is a mode of torch.compile; "channels-last+default" is both. PRECISION is f32, TF32 or
bf16, which is torch's autocast.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contestant import serve
from specs import SPECS, Spec
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import networks

BATCHES = 5  # in the file of losses; training repeats them
RUNS = 3  # with cuDNN and oneDNN, whose order of sums may vary


class ConvNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.fc = nn.Linear(32, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(torch.relu(self.bn2(self.conv2(x))).mean(dim=(2, 3)))


def module_of(spec: Spec) -> nn.Module:
    torch.manual_seed(0)
    if spec.kind == "lenet":
        return networks.lenet()
    if spec.kind == "mlp":
        return networks.mlp(spec.sizes)
    if spec.kind == "convnet":
        return ConvNet(spec.classes)
    if spec.kind == "resnet50":
        return networks.resnet50() if spec.classes == 1000 else _with_classes(networks.resnet50(), spec.classes)
    return networks.Gpt(spec.classes, spec.width, spec.heads, spec.layers, spec.tokens)


def _with_classes(module: Any, classes: int) -> nn.Module:
    module[-1] = nn.Linear(module[-1].in_features, classes)
    return module


def optimizer_of(spec: Spec, module: nn.Module) -> torch.optim.Optimizer:
    rate = spec.options["learning_rate"]
    if spec.optimizer == "adam":
        return torch.optim.Adam(module.parameters(), rate)
    return torch.optim.SGD(module.parameters(), rate, spec.options["momentum"])


def batches(spec: Spec, count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    shape = (count, *spec.x_shape)
    if spec.kind == "gpt":
        x = random.integers(spec.classes, size=shape, dtype=np.int64)
    else:
        x = random.standard_normal(shape, dtype=np.float32)
    return x, random.integers(spec.classes, size=(count, spec.rows), dtype=np.int64)


def autocast(device: str, precision: str) -> torch.autocast:
    """In bf16, the context of a forward pass in mixed precision; otherwise one without effect."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")


def set_tf32(allowed: bool) -> None:
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def train(spec: Spec, device: str, precision: str, x: np.ndarray, label: np.ndarray, steps: int) -> list[float]:
    """Returns the losses of a module with the initial weights of module_of."""
    dtype = torch.float64 if precision == "f64" else torch.float32
    module = module_of(spec).train().to(device, dtype)
    optimizer = optimizer_of(spec, module)
    found = []
    for step in range(steps):
        samples, labels = (torch.from_numpy(part[step % BATCHES]).to(device) for part in (x, label))
        samples = samples.to(dtype) if samples.is_floating_point() else samples
        optimizer.zero_grad()
        with autocast(device, precision):
            loss = nn.functional.cross_entropy(module(samples), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def losses(name: str, path: Path, steps: int, device: str) -> None:
    """Writes the losses in f64, and those of several runs in f32 and in bf16: with cuDNN and oneDNN, and at last without
    them, because their kernels round differently.
    """
    spec = SPECS[name]
    set_tf32(False)
    start = {f"p:{key}": value.numpy().copy() for key, value in module_of(spec).state_dict().items()}
    x, label = batches(spec, BATCHES)
    exact = train(spec, device, "f64", x, label, steps)
    own = {p: [train(spec, device, p, x, label, steps) for _ in range(RUNS)] for p in ("f32", "bf16")}
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=False), torch.backends.mkldnn.flags(enabled=False):
        for precision, runs in own.items():
            runs.append(train(spec, device, precision, x, label, steps))
    np.savez(path, x=x, label=label, losses=np.array(exact), **{k: np.array(runs) for k, runs in own.items()}, **start)


class Steps:
    """Training steps with a batch that comes from the host each time, as Lockstep's does, and with a batch that stays
    on the device.
    """

    def __init__(self, name: str, how: str, device: str, precision: str) -> None:
        set_tf32(precision == "TF32")
        spec = SPECS[name]
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        begin = time.perf_counter()
        self.module: Any = module_of(spec).train().to(self.device)
        x, label = (torch.from_numpy(part[0]) for part in batches(spec, 1))
        self.host = (x, label)
        self.resident = (x.to(self.device), label.to(self.device))
        self.layout = torch.channels_last if "channels-last" in how else None
        if self.layout is not None:
            self.module = self.module.to(memory_format=self.layout)
            self.resident = (self.resident[0].contiguous(memory_format=self.layout), self.resident[1])
        self.optimizer = optimizer_of(spec, self.module)
        self.loss: Any = lambda x, label: self._loss(x, label, precision)
        mode = how.replace("channels-last", "").strip("+")
        if mode not in ("", "eager"):
            self.loss = torch.compile(self.loss, mode=mode)
        for _ in range(3):  # CUDA graphs are captured in the second and third step
            self.step(*self.resident).item()
        self.compile_seconds = time.perf_counter() - begin

    def _loss(self, x: torch.Tensor, label: torch.Tensor, precision: str) -> torch.Tensor:
        with autocast(self.device.type, precision):
            return nn.functional.cross_entropy(self.module(x), label)

    def step(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(x, label)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fed(self) -> None:
        x, label = (part.to(self.device) for part in self.host)
        if self.layout is not None:
            x = x.contiguous(memory_format=self.layout)
        self.step(x, label).item()

    def ready(self) -> dict[str, Any]:
        return {"compile_seconds": self.compile_seconds}

    def run(self, steps: int) -> dict[str, Any]:
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            self.fed()
            seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(steps):
            loss = self.step(*self.resident)
        loss.item()
        resident = (time.perf_counter() - begin) / steps
        answer = {"seconds": seconds, "resident": resident}
        if self.cuda:
            answer["peak_bytes"] = torch.cuda.max_memory_allocated()
            answer["reserved_bytes"] = torch.cuda.memory_reserved()
        return answer


def about() -> dict[str, str]:
    found = {"torch": torch.__version__}
    if torch.cuda.is_available():
        found["GPU"] = torch.cuda.get_device_name()
        found["cuDNN of torch"] = str(torch.backends.cudnn.version())
        found["NCCL of torch"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "about":
        print(json.dumps(about()))
    elif what == "losses":
        losses(rest[0], Path(rest[1]), int(rest[2]), rest[3])
    else:
        serve(lambda: Steps(*rest))


if __name__ == "__main__":
    main()
