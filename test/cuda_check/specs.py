"""The networks of the check: their sizes, batches and optimizers. Lockstep's scripts and those of the peers both read
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spec:
    kind: str  # "lenet", "mlp", "convnet", "resnet50", "gpt"
    batch: int
    classes: int  # the number of classes of a label
    sizes: tuple[int, ...] = ()  # mlp: the layers' widths, the input's first
    image: tuple[int, ...] = ()  # shape of one sample
    width: int = 0  # gpt, like the next fields; its vocabulary size is `classes`
    heads: int = 0
    layers: int = 0
    tokens: int = 0
    optimizer: str = "sgd"  # or "adam"
    options: dict[str, float] = field(default_factory=lambda: {"learning_rate": 0.01, "momentum": 0.9})

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.batch, *(self.image or self.sizes[:1] or (self.tokens,)))

    @property
    def rows(self) -> int:
        """The number of labels of a batch."""
        return self.batch * max(1, self.tokens)


ADAM = {"optimizer": "adam", "options": {"learning_rate": 1e-3}}
QUICK = {"options": {"learning_rate": 0.05, "momentum": 0.9}}

SPECS = {
    # Networks whose losses are compared.
    "lenet": Spec("lenet", 64, 10, image=(1, 28, 28), **QUICK),
    "mlp-adam": Spec("mlp", 64, 10, sizes=(784, 256, 128, 10), **ADAM),
    "convnet-bn": Spec("convnet", 32, 10, image=(3, 32, 32), **QUICK),
    "gpt-small": Spec("gpt", 8, 256, width=64, heads=4, layers=2, tokens=32, **ADAM),
    # Networks that are measured, besides lenet.
    "mlp": Spec("mlp", 128, 1000, sizes=(1024, 4096, 4096, 1000)),
    "resnet50": Spec("resnet50", 128, 1000, image=(3, 224, 224)),
    "gpt": Spec("gpt", 16, 50304, width=768, heads=12, layers=12, tokens=1024),
    # Small versions of the same, for trying the check on a machine without a GPU.
    "mlp-tiny": Spec("mlp", 8, 10, sizes=(32, 64, 64, 10)),
    "resnet50-tiny": Spec("resnet50", 2, 10, image=(3, 32, 32)),
    "gpt-tiny": Spec("gpt", 2, 64, width=32, heads=2, layers=2, tokens=16),
}
LOSSES = ("lenet", "mlp-adam", "convnet-bn", "gpt-small")
