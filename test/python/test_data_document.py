"""Runs the code of docs/data.md on one rank and on two: batches have the same samples, and each sample comes once."""

from __future__ import annotations

import importlib.util
import json
import textwrap
from pathlib import Path

import numpy as np
import pytest

from document_code import Block, blocks
from ranks import mpirun

DOCUMENT = blocks("docs/data.md")
NEEDED = {
    "torch.utils.data": "torch",
    "tf.data": "tensorflow",
}  # by heading; all other blocks need only requirements.txt
# A section in which ranks have samples of their own, so the samples of a batch depend on the number of ranks.
BY_PARTS = "Parts: a rank that reads its own samples alone"

# A replacement for the step and the model. It records its samples, which their labels identify.
PROGRAM = """
import json
import sys
from types import SimpleNamespace


class Exe:
    step = 0

    def __init__(self):
        self.batches = []

    @property
    def state(self):
        flat = images.reshape(1000, 784)
        return {{"w": 2 * flat.T, "b": -np.sum(flat**2, axis=1)}}

    @property
    def shares(self):
        return [128] if world.size == 1 else [96, 32]

    def balance(self):
        return False

    def __call__(self, image, label):
        image, label = np.asarray(image), np.asarray(label)
        assert len(image) in (128 // world.size, self.shares[world.rank])
        assert image.shape[1:] == (1, 28, 28) and image.dtype == np.float32, image.shape
        self.batches.append(label.tolist())
        return {{"loss": 0.0}}


# The scores of this model say which sample is nearest, so that it knows all of them.
MODEL = '''
graph @nearest(%image: f32[128,1,28,28] split(0), state %w: f32[784,1000], state %b: f32[1000]) -> (logits: f32[128,1000]) {{
  %1 = reshape %image {{shape=[128, 784]}} : f32[128,784]
  %2 = matmul %1, %w : f32[128,1000]
  %3 = broadcast %b {{dims=[1], shape=[128, 1000]}} : f32[128,1000]
  %4 = add %2, %3 : f32[128,1000]
  return %4
}}
'''


def keep(heading):
    if "result" in globals():
        found = globals().pop("result")
        assert found["accuracy"] == 1 and found["rows"] == 1000 and found["loss"] < 0.1, found
    parts = [json.loads(part) for part in world.gather_bytes(json.dumps(exe.batches).encode())]
    if world.rank == 0:
        print("BATCHES " + json.dumps([heading, [sum(shares, []) for shares in zip(*parts, strict=True)]]))
    exe.batches.clear()


if __name__ == "__main__":
{body}
"""

SAMPLES = """
import numpy as np

images = np.random.default_rng(0).random((1000, 1, 28, 28), np.float32)


def sample(number):
    return images[number], number


class Samples:
    def __len__(self):
        return len(images)

    def __getitem__(self, number):
        return sample(number)
"""


def chosen(needed: str | None) -> list[Block]:
    """The blocks to run for those that need the package (or none): the blocks that they depend on, and these blocks."""
    if needed is None:
        return [each for each in DOCUMENT if each.heading not in NEEDED]
    base = [each for each in DOCUMENT[:2] if each.heading in ("How data gets to the ranks", "Arrays")] + [
        each for each in DOCUMENT if each.heading == "Reading ahead"
    ]
    return base + [each for each in DOCUMENT if NEEDED.get(each.heading) == needed]


def run(ranks: int, needed: str | None, folder: Path) -> list[tuple[str, list[list[int]]]]:
    """The heading of each block of code, and the samples of its global batches."""
    folder.mkdir()
    first, *others = chosen(needed)
    body = first.code + "exe, model = Exe(), ls.parse(MODEL)\n"
    for block in others:
        body += f"{block.code}keep({block.heading!r})\n"
    (folder / "samples.py").write_text(SAMPLES)
    program = folder / "program.py"
    program.write_text("import numpy as np\n" + PROGRAM.format(body=textwrap.indent(body, "    ")))
    done = mpirun(ranks, program, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line[8:])) for line in done.stdout.splitlines() if line.startswith("BATCHES ")]


@pytest.mark.parametrize(
    "needed", [None, *(pytest.param(each, marks=pytest.mark.everything) for each in NEEDED.values())]
)
def test_one_rank_and_two_get_the_same_samples(needed: str | None, tmp_path: Path) -> None:
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    one, two = (run(ranks, needed, tmp_path / str(ranks)) for ranks in (1, 2))
    assert [heading for heading, _ in one] == [heading for heading, _ in two]
    assert len(one) == len(chosen(needed)) - 1
    ran = set()
    for (heading, alone), (_, shared) in zip(one, two, strict=True):
        assert len(alone) == len(shared)
        in_their_order = heading not in NEEDED
        for a, b in zip(alone, shared, strict=True):
            assert len(set(a)) == len(set(b)) == 128, "no sample twice"
            assert heading == BY_PARTS or (a == b if in_their_order else sorted(a) == sorted(b))
        for epoch in range(len(alone) // 7):
            for batches in (alone, shared):
                assert len(set(np.ravel(batches[7 * epoch : 7 * epoch + 7]))) == 7 * 128
        assert len(alone) % 7 == 0
        if alone:
            ran.add(heading)
    expected = {block.heading for block in chosen(needed) if "exe(" in block.code}
    assert needed is not None or BY_PARTS in expected
    assert ran == expected and (needed is None or set(NEEDED) & ran)


def test_every_block_of_the_document_is_run() -> None:
    every = {block.code for needed in (None, *NEEDED.values()) for block in chosen(needed)}
    assert every == {block.code for block in DOCUMENT}
    assert len(DOCUMENT) >= 10
    assert {block.language for block in DOCUMENT} == {"python"}
