"""What the site has besides the folder docs/: the README as its first page, the pages of the examples, the list of
decisions, the Python API, and each other file of the checkout to which a page links.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
# Files and folders of the checkout that have another place in the site.
PLACES = {
    PurePosixPath("README.md"): "index.md",
    PurePosixPath("docs"): "training.md",
    PurePosixPath("docs/decisions"): "decisions/index.md",
}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
MODULES = ("average", "clip", "data", "graph", "kv", "loss", "metrics", "optim", "schedule")


def place_of(file: PurePosixPath) -> str:
    """Returns the place in the site of a file or folder of the checkout: docs/ is the site's folder, and keeps its names.
    A folder is a page that lists its files."""
    if file in PLACES:
        return PLACES[file]
    if (ROOT / file).is_dir():
        return str(file / "index.md")
    return str(file.relative_to("docs") if file.is_relative_to("docs") else file)


def source_of(place: str) -> PurePosixPath:
    """Returns the file of the checkout for a place in the site."""
    if place == "index.md":
        return PurePosixPath("README.md")
    return PurePosixPath("docs", place) if (ROOT / "docs" / place).exists() else PurePosixPath(place)


def target_of(link: str, page: PurePosixPath) -> PurePosixPath | None:
    """Returns the file or folder of the checkout to which a page of it links: a folder's README where there is one. None:
    there is no such file."""
    target = PurePosixPath(os.path.normpath(page.parent / link))
    if (ROOT / target / "README.md").is_file():
        return target / "README.md"
    return target if (ROOT / target).exists() else None


def rewritten(text: str, page: PurePosixPath) -> str:
    """Returns a page's text with links to places in the site."""

    def place(match: re.Match[str]) -> str:
        file = target_of(match[1], page)
        if file is None:
            return match[1]  # strict mode reports it
        return os.path.relpath(place_of(file), PurePosixPath(place_of(page)).parent)

    return LINK.sub(place, text)


def api() -> str:
    """Returns the page of the Python API: the names of `lockstep`, then those of its modules."""
    tree = ast.parse((ROOT / "python_bindings/lockstep/__init__.py").read_text())
    exported = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    lines = ["# Python API", "", "`import lockstep as ls`", "", "## lockstep", ""]
    lines += [f"::: lockstep.{name}" for name in exported if name not in MODULES and not name.startswith("_")]
    for module in MODULES:
        lines += ["", f"## lockstep.{module}", "", f"::: lockstep.{module}", "    options: {show_root_heading: false}"]
    return "\n".join(lines) + "\n"


def decisions() -> str:
    """Returns the page that lists the decisions."""
    paths = sorted((ROOT / "docs/decisions").glob("0*.md"))
    titles = [(path.name, path.read_text().partition("\n")[0].removeprefix("# ")) for path in paths]
    return "# Decisions\n\n" + "".join(f"- [{title}]({name})\n" for name, title in titles)


def listing(folder: PurePosixPath) -> str:
    """Returns a page with the files of a folder."""
    names = sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file())
    return f"# {folder}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages, and the files to which pages link."""
    files.append(File.generated(config, "api.md", content=api()))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    files.append(File.generated(config, "site.css", abs_src_path=str(Path(__file__).with_name("site.css"))))
    for file in files.documentation_pages():
        if file.src_uri.startswith("decisions/0"):
            file.inclusion = InclusionLevel.NOT_IN_NAV
    examples = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("**/README.md"))
    waiting = [PurePosixPath(name) for name in ("README.md", "CONTRIBUTING.md", "TESTING.md", *examples)]
    waiting += [source_of(file.src_uri) for file in files.documentation_pages() if file.generated_by is None]
    seen: set[PurePosixPath] = set()
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        place = place_of(page)
        if (ROOT / page).is_dir() and page not in PLACES:
            files.append(File.generated(config, place, content=listing(page), inclusion=InclusionLevel.NOT_IN_NAV))
            waiting += [page / path.name for path in (ROOT / page).iterdir() if path.is_file()]
        elif files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / page)))
        if page.suffix == ".md":
            links = [target_of(link, page) for link in LINK.findall((ROOT / page).read_text())]
            waiting += [link for link in links if link is not None]
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page of the checkout."""
    source = source_of(page.file.src_uri)
    return rewritten(markdown, source) if (ROOT / source).is_file() else markdown
