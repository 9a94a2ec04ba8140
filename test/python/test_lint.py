"""The checks of `make lint` find what they are for: large headers, circles of folders, and bad prose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BAZEL = Path(__file__).resolve().parents[2] / "bazel"
sys.path.append(str(BAZEL))
import folder_circles
import header_lines
import prose


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Path]:
    """Returns a function that fills a checkout with files, in which the checks then look."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for module in (folder_circles, header_lines, prose):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["check"])

    def fill(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return fill


@pytest.mark.parametrize(("bound", "code"), [(2, 0), (1, 1)])
def test_lines_of_headers_are_compared_with_the_bound(
    bound: int, code: int, tree: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree({"a/b.cc": '#include "a/b.h"\n\nint b = a;  // the second line\n', "a/b.h": "extern int a;\n"})
    monkeypatch.setattr(header_lines, "BOUNDS", {"a/b.cc": bound})
    assert header_lines.main() == code
    assert f"header_lines: a/b.cc: 2 of at most {bound} lines" in capsys.readouterr().out


def test_no_circle(tree: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    tree(
        {
            # A contract beside the folders counts by itself, as do the file that includes all folders, and tests.
            "runtime/contract.h": '#include "runtime/name.h"\n',
            "runtime/name.cc": '#include "runtime/contract.h"\n',
            "runtime/all.cc": '#include "runtime/a/a.h"\n#include "runtime/b/b.h"\n',
            "runtime/a/a.h": '#include "runtime/contract.h"\n',
            "runtime/b/b.h": '#include "runtime/a/a.h"\n#include "runtime/contract.h"\n#include "core/c.h"\n',
            "runtime/a/a_test.cc": '#include "runtime/b/b.h"\n',
            "core/c.h": "#include <vector>\n",
            "python_bindings/lockstep/__init__.py": "from ._a import f\nfrom .b import g\n",
            "python_bindings/lockstep/_a/f.py": "from . import g\n",
            "python_bindings/lockstep/b.py": "from ._a import f\n",
        }
    )
    assert folder_circles.main() == 0
    both = ["folder_circles: C++ has no circle of folders", "folder_circles: Python has no circle of folders"]
    assert capsys.readouterr().out.splitlines() == both


def test_a_circle_of_three_folders_of_cpp(tree: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    tree(
        {
            "runtime/a/a.cc": '#include "runtime/b/b.h"\n',
            "runtime/b/b.h": '#include "backends/c/c.h"\n',
            "backends/c/other.h": '#include "runtime/a/a.h"\n',
        }
    )
    assert folder_circles.main() == 1
    assert capsys.readouterr().out.splitlines()[:4] == [
        "folder_circles: C++ has a circle of folders:",
        "  backends/c includes runtime/a: backends/c/other.h",
        "  runtime/a includes runtime/b: runtime/a/a.cc",
        "  runtime/b includes backends/c: runtime/b/b.h",
    ]


@pytest.mark.parametrize(
    "back",
    [
        "from ..b import g",
        "from .. import b",
        "def f():\n    from ..b.g import h",
        "from lockstep.b import g",
        "import lockstep.b.g",
    ],
)
def test_a_circle_of_python(back: str, tree: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    tree({"python_bindings/lockstep/b/g.py": "from .._a import f\n", "python_bindings/lockstep/_a/f.py": back + "\n"})
    assert folder_circles.main() == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "folder_circles: Python has a circle of folders:",
        "  python_bindings/lockstep/_a includes python_bindings/lockstep/b: python_bindings/lockstep/_a/f.py",
        "  python_bindings/lockstep/b includes python_bindings/lockstep/_a: python_bindings/lockstep/b/g.py",
    ]


CPP = """// What a rank waits for.
// It continues here: which is the same comment.
int a;  // which counts by itself
const char* url = "http://how";
/// The rank.
"""
PYTHON = '''"""Whether it holds.

How is not the first word.
"""

def f():
    """That which is returned."""
    # Who reads this
    # whose reader it is
    return "#why"  # which is no comment


async def g():
    """Those that wait."""
'''


def test_each_comment_counts_once_by_its_first_word(tree: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    tree({"a.cc": CPP, "b/c.py": PYTHON})
    sys.argv.append("--list")
    assert prose.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "a.cc:1: What a rank waits for.",
        "a.cc:3: which counts by itself",
        "b/c.py:8: Who reads this",
        "b/c.py:10: which is no comment",
        "b/c.py:1: Whether it holds.",
        "b/c.py:7: That which is returned.",
        "b/c.py:14: Those that wait.",
        "prose: 7 of 8 comments open with a relative word, 87.5% of at most 2%",
    ]


@pytest.mark.parametrize(("good", "code"), [(49, 0), (48, 1)])
def test_the_share_of_bad_openings_has_a_limit(good: int, code: int, tree: Callable) -> None:
    tree({"a.h": "// What waits.\nint a;\n" + "// The rank.\nint b;\n" * good})
    assert prose.main() == code


def test_lines_of_documents_have_a_width(tree: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 25
    tree(
        {
            "a.md": f"{long}\n```\n{long}\n```\n| {long}|\n{long}\n",
            "b.md": f"{'word ' * 24}\nhttps://{'word' * 40}\n",
            "docs/ops.md": long,
        }
    )
    assert prose.main() == 1
    assert capsys.readouterr().out.splitlines()[:-1] == [f"a.md:{i}: more than 120 columns" for i in (1, 6)]
