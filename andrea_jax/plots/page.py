"""Self-contained HTML: escaped text, tables and figures as parts of one page without scripts or network."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as escape

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1a1a1a; --soft: #5c5c5c; --line: #d9d9d9; --tint: #f4f6f8;
  --link: #005a8c; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181b; --ink: #e6e6e6; --soft: #a3a8ae; --line: #3a3f45;
  --tint: #1f2327; --link: #7cc0ea; } figure img { filter: brightness(.92); } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 70rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
p, ul { max-width: 48rem; margin: .5rem 0; } li { margin: .3rem 0; }
a { color: var(--link); } nav a { margin-right: 1rem; }
.soft { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } thead th { white-space: nowrap; background: var(--tint); }
td.number, th.number { text-align: right; white-space: nowrap; }
tr.above td, tr.above th { font-weight: 600; } td.null { color: var(--soft); } td.above { font-weight: 600; }
tr:not(.above) th[scope=row] { font-weight: 400; } tr.undefined, td.undefined { color: var(--soft); }
figure { margin: 1rem 0 1.6rem; }
figure img { display: block; max-width: max(100%, 40rem); height: auto; background: #fff; padding: 10px;
  border-radius: 6px; border: 1px solid var(--line); }
figcaption { max-width: 48rem; margin-top: .5rem; color: var(--soft); font-size: .95rem; }
pre { background: var(--tint); padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; border-radius: 6px; }
dt { font-weight: 600; margin-top: .6rem; } dd { margin: 0 0 0 1rem; max-width: 48rem; }
td.wide { overflow-wrap: anywhere; } summary { cursor: pointer; margin: .8rem 0; }
"""


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, and a class name ("number", "null", "above")."""

    text: str
    kind: str = "number"


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document from parts that are already HTML; the title is escaped here."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def section(name: str, *parts: str) -> str:
    return "\n".join([f'<section id="{anchor(name)}">', f"<h2>{escape(name)}</h2>", *parts, "</section>"])


def anchor(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def contents(names: Iterable[str]) -> str:
    links = (f'<a href="#{anchor(name)}">{escape(name)}</a>' for name in names)
    return f"<nav>{' '.join(links)}</nav>"


def text(words: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>"


def bullets(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def table(header: Sequence[Cell], rows: Iterable[tuple[str, Sequence[Cell]]]) -> str:
    """A table whose first column heads its rows; a row is (class name or "", cells)."""
    head = "".join(f'<th scope="col" class="{cell.kind}">{escape(cell.text)}</th>' for cell in header)
    body = "".join(
        f'<tr class="{kind}"><th scope="row">{escape(cells[0].text)}</th>'
        + "".join(f'<td class="{cell.kind}">{escape(cell.text)}</td>' for cell in cells[1:])
        + "</tr>\n"
        for kind, cells in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def folded(summary: str, part: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>\n{part}\n</details>"


def code(words: str) -> str:
    return f"<pre>{escape(words)}</pre>"


def words(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in pairs) + "</dl>"


def figure(svg: bytes, width: float, title: str, aid: str) -> str:
    """An SVG embedded as an image (so that names inside one never meet another's), `width` in inches."""
    source = "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    image = f'<img src="{source}" width="{round(96 * width) + 22}" alt="{escape(title)}">'
    return f'<figure><div class="scroll">{image}</div><figcaption>{escape(aid)}</figcaption></figure>'
