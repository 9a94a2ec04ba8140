"""The site: `make site` builds it, and it has every document and every exported name."""

from __future__ import annotations

import re
import subprocess
import types
from pathlib import Path

import pytest

import lockstep as ls

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tools/site/mkdocs.yml"


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocs", reason="requirements-site.txt is not installed; `make site` installs it")
    command = [ROOT / ".venv/bin/mkdocs", "build", "-f", config, "-d", folder]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(CONFIG, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(documents) > 70
    assert [document for document in documents if not (site / document.with_suffix(".html")).is_file()] == []
    assert "A step before the pass" in (site / "index.html").read_text()  # the README


def test_the_api_has_every_exported_name(site: Path) -> None:
    ids = set(re.findall(r'<h[1-6] id="([^"]+)"', (site / "api.html").read_text()))
    names = [name for name in ls.__all__ if not name.startswith("_")]
    modules = [name for name in names if isinstance(getattr(ls, name), types.ModuleType)]
    assert [name for name in names if name not in modules and f"lockstep.{name}" not in ids] == []
    assert [name for name in modules if f"lockstep{name}" not in ids] == []
    assert [name for name in ls.optim.__all__ if not any(each.endswith(f".{name}") for each in ids)] == []


def test_links_to_files_of_the_checkout_lead_somewhere(site: Path) -> None:
    page = (site / "training.html").read_text()
    for link in re.findall(r'href="(examples/[^"]*)"', page):
        assert (site / link).is_file(), link
    assert 'href="examples/mnist/train.py"' in page


def test_a_link_to_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# A page\n\n[nothing](nothing.md)\n")
    own = f"INHERIT: {CONFIG}\ndocs_dir: docs\nhooks: []\nextra_css: []\nplugins: [search]\nnav: [index.md]\n"
    (tmp_path / "mkdocs.yml").write_text(own)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "nothing.md" in done.stderr
