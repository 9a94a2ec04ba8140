"""Writes docs/options.md, the options of compile, from their table.

python tools/options_document.py        # `make docs` runs this; a test fails if the document is out of date
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from lockstep._compile import options

PATH = Path(__file__).parents[1] / "docs" / "options.md"
HEAD = """# The options of `compile`

Generated from the table in `backends/option_table.cc`: run `make docs`.

`lockstep.compile(graph, backend, world, **options)` takes these keywords. Options of a strategy must be equal on
all ranks, which compare them. A `lockstep.Strategy` is one value with all these options. Its text lists those that
differ from their defaults, such as `mesh={data=2,model=2},split={fc1.weight={model=0}},wire=bf16`:

```python
strategy = ls.Strategy(mesh={"data": 2, "model": 2}, split={"fc1.weight": {"model": 0}}, wire="bf16")
exe = ls.compile(step, world=world, strategy=strategy)        # or strategy=str(strategy)
assert exe.strategy == ls.Strategy.parse(str(exe.strategy))   # the strategy of the compilation
```

Two options that exclude each other are an error that names both.
"""


def section(title: str, is_of_strategy: bool) -> str:
    parts = [f"## {title}"]
    for name, option in options.TABLE.items():
        if option["is_of_strategy"] == is_of_strategy:
            doc = textwrap.fill(" ".join(option["doc"].split()), 120, break_on_hyphens=False, break_long_words=False)
            parts.append(f"### `{name}: {option['type']} = {option['default']}`\n\n{doc}")
    return "\n\n".join(parts)


def document() -> str:
    return "\n".join(
        [HEAD, section("Options of a strategy", True), "", section("Options of one rank and its machine", False), ""]
    )


if __name__ == "__main__":
    PATH.write_text(document())
