#!/usr/bin/env python3
"""Checks the prose of comments, docstrings and documents.

A comment opens with a noun or a verb, not with a relative word: "What a rank waits for" leaves its reader to find the subject;
"The rank that this one waits for" and "Returns the rank …" name it. Each comment counts once, by its first word, and the share
of relative words may not exceed `LIMIT`. Lines of Markdown have at most `WIDTH` columns, except in tables, code and generated
documents.

    bazel/prose.py [--list] [PATH ...]
"""

import argparse
import ast
import itertools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 0.02
WIDTH = 120
GENERATED = re.compile(r"docs/(ops|onnx|options|scaling|gpu[-_].*)\.md$")
OPENINGS = {"how", "that", "those", "what", "where", "whether", "which", "who", "whom", "whose", "why"}


def line_comments(text: str, marker: str):
    """Yields the number and the text of the first line of each comment; consecutive lines of nothing else are one."""
    continues = False
    for number, line in enumerate(text.split("\n"), 1):
        match = re.search(rf"(?:^|\s){marker}(.*)$", line)
        alone = match is not None and not line[: match.start()].strip()
        if match and not (continues and alone):
            yield number, match[1]
        continues = alone


def docstrings(text: str):
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and (doc := ast.get_docstring(node)):
            yield node.body[0].lineno, doc.split("\n")[0]


def comments(path: pathlib.Path):
    text = path.read_text()
    if path.suffix == ".py":
        return itertools.chain(line_comments(text, "# "), docstrings(text))
    return line_comments(text, r"//[/!]?\s?")


def long_lines(text: str):
    """Yields the numbers of lines of Markdown that are too long."""
    in_code = False
    for number, line in enumerate(text.split("\n"), 1):
        in_code ^= line.lstrip().startswith("```")
        if len(line) > WIDTH and not in_code and not line.lstrip().startswith("|") and " " in line.strip()[:WIDTH]:
            yield number


def opens_badly(comment: str) -> bool:
    word = re.match(r"[A-Za-z]+", comment)
    return word is not None and word[0].lower() in OPENINGS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print each of them")
    parser.add_argument("paths", nargs="*", default=["."])
    arguments = parser.parse_args()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *arguments.paths],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()
    total = bad = too_long = 0
    for name in listed:
        path = ROOT / name
        if path.suffix == ".md" and path.is_file() and not GENERATED.match(name):
            for number in long_lines(path.read_text()):
                too_long += 1
                print(f"{name}:{number}: more than {WIDTH} columns")
        if path.suffix not in (".cc", ".h", ".py", ".cu", ".inc") or not path.is_file():
            continue
        for number, comment in comments(path):
            total += 1
            if opens_badly(comment):
                bad += 1
                if arguments.list:
                    print(f"{name}:{number}: {comment}")
    share = bad / max(total, 1)
    print(f"prose: {bad} of {total} comments open with a relative word, {share:.1%} of at most {LIMIT:.0%}")
    return int(share > LIMIT or too_long > 0)


if __name__ == "__main__":
    sys.exit(main())
