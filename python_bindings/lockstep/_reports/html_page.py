"""The parts of pages that all pages have: escaped text, tables, and the document, which needs nothing but a browser."""

from __future__ import annotations

import html

STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; padding: 0 2em; max-width: 1300px; color: #222; background: #fff; }
h1 { font-size: 1.3em; } h2 { font-size: 1.1em; margin-top: 2em; } p, li, td.name { overflow-wrap: anywhere; }
.wide { overflow-x: auto; } svg { width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: 2px 10px; text-align: right; white-space: nowrap; }
td.name, th.name { text-align: left; white-space: normal; min-width: 8em; } tr:nth-child(even) { background: #f6f6f6; }
svg text { font-size: 11px; }
"""


def text(value: object) -> str:
    return html.escape(str(value))


def table(rows: list[str]) -> str:
    """Returns a table that scrolls if it is wider than the page, as with many ranks."""
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def document(title: str, body: list[str], style: str) -> str:
    """Returns the page. `style` is added to STYLE."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        f"<style>{STYLE}{style}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )
