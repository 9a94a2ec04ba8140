"""The training steps of which the programs of seeded_programs.py are made, and the table of these programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lockstep as ls
from cases import CASES, ROOT
from test_verify import step_of

_, MLP, CONVNET = CASES
SGD = ls.optim.SGD(0.1, momentum=0.9)
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
GPT = ROOT / "test/models/gpt.onnx"
FEW_OPS = Path(__file__).with_name("seeded_programs.ir")
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(body: Callable[[], None]) -> Callable[[], None]:
        PROGRAMS[name] = body
        return body

    return add


def mlp(**recipe: Any) -> ls.Graph:
    return step_of(MLP, recipe.pop("optimizer", SGD), **recipe)


def convnet(**recipe: Any) -> ls.Graph:
    return step_of(CONVNET, recipe.pop("optimizer", SGD), **recipe)


def with_loss(loss: ls.loss.Loss, **recipe: Any) -> ls.Graph:
    return ls.train_step(ls.load_onnx(MLP.model, dims={"batch": 8}), loss, recipe.pop("optimizer", SGD), **recipe)


def gpt(batch: int = 4, **recipe: Any) -> ls.Graph:
    model = ls.load_onnx(GPT, dims={"batch": batch})
    return ls.train_step(model, LOSS, recipe.pop("optimizer", SGD), **recipe)


LOSSES: dict[str, ls.loss.Loss] = {
    "weights": ls.loss.softmax_cross_entropy("logits", "label", class_weights=[1.0, 2.0, 3.0, 0.5, 0.25]),
    "ignored": ls.loss.softmax_cross_entropy("logits", "label", ignore_index=2),
    "samples": ls.loss.softmax_cross_entropy("logits", "label", sample_weight="w"),
    "sum": ls.loss.softmax_cross_entropy("logits", "label", reduction="sum"),
    "squares": ls.loss.mean_squared_error("logits", "target"),
    "two": LOSS + 0.5 * ls.loss.mean_squared_error("logits", "target"),
    "squares of samples": ls.loss.mean_squared_error("logits", "target", sample_weight="w"),
    "batchmean": ls.loss.kl_div("logits", "target", reduction="batchmean"),
}


def blocks_of(path: Path) -> Iterator[tuple[str, str, str]]:
    """The name, the comment and the text of each graph of a file, whose first block is a comment on all."""
    for block in path.read_text().split("\n\n")[1:]:
        lines = block.strip().splitlines()
        comments = [line.strip("/ ") for line in lines if line.startswith("//")]
        text = "\n".join(line for line in lines if not line.startswith("//"))
        yield re.search(r"^graph @(\w+)", text, re.MULTILINE)[1], " ".join(comments), text
