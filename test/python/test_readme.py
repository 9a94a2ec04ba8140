"""The README is short, and its picture of a step is what the compiler prints. test_document_code.py runs its program."""

from __future__ import annotations

import re

import lockstep as ls
from document_code import ROOT, blocks


def without_comments(text: str) -> list[str]:
    return [re.sub(r" *//.*", "", line) for line in text.strip().splitlines()]


def test_its_length() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120


def test_its_picture_is_what_the_compiler_prints() -> None:
    before, after, *_ = (block.code for block in blocks("README.md", ""))
    distributed = ls.distribute(ls.parse(before), {"data": 4})
    assert without_comments(str(distributed)) == without_comments(after)
