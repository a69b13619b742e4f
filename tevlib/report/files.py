"""A table's files: CSV with every number, and its printed parts as Markdown, HTML and LaTeX.

A printed part is a frame of text; `attrs["notes"]`, where it has any, are the lines under it.
"""

import html
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from pandas.io.formats.style import Styler

from tevlib.report.verdicts import DIFFERENT, FAILED, MATCH, NOT_IN_PAPER, NOT_RUN, OUTSIDE, REHEARSED, SYMBOLS

DASH = "—"
DAGGER = "†"
COLOURS = {  # beside the symbols, never instead of them; told apart by the colour-blind too, 4.5:1 on white
    MATCH: "color: #00704f; font-weight: bold",
    OUTSIDE: "color: #b34700; font-weight: bold",
    NOT_RUN: "color: #5f5f5f",
    FAILED: "color: #9c2f6f; font-weight: bold",
    DIFFERENT: "color: #00568a",
    REHEARSED: "color: #5f5f5f",
    NOT_IN_PAPER: "color: #5f5f5f",
}
SHEET = {  # selectors -> CSS
    "": "border-collapse: collapse",
    "th, td": "padding: 2px 8px; text-align: right; white-space: nowrap",
    "tbody th": "text-align: left; vertical-align: top; font-weight: normal",
    "thead th": "text-align: center",
    "tbody tr:has(th + th) > *": "border-top: 1px solid #c8c8c8",
    "caption": "caption-side: bottom; text-align: left; padding-top: 6px",
}
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "τ": r"$\tau$", "±": r"$\pm$", "≤": r"$\le$",
    "≠": r"$\neq$", "…": r"\dots{}", "†": r"$\dagger$", "✓": r"\checkmark{}", "✗": r"$\times$", "○": r"$\circ$",
    DASH: "---", ">": "$>$", "<": "$<$", "|": r"$|$",
}  # fmt: skip


def write_files(table: pd.DataFrame, parts: Mapping[str, pd.DataFrame], folder: Path) -> list[Path]:
    """Paths of `<name>.csv` (every number of `table`), `.md`, `.html` and `.tex` (its printed `parts`) in `folder`.

    `table.attrs` holds the name (`table`, such as "table4") and the `caption`; the first part is the table itself, with
    the caption as its title, the others have titles of their own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, caption = table.attrs["table"], table.attrs["caption"]
    paths = {kind: folder / f"{name}.{kind}" for kind in ("csv", "md", "html", "tex")}
    table.to_csv(paths["csv"], index=False, float_format="%.6g")
    titled = {title or caption: part for title, part in parts.items()}
    paths["md"].write_text("\n\n".join(as_text(titled)) + "\n", encoding="utf-8")
    paths["html"].write_text(_page(name, titled), encoding="utf-8")
    head = "% needs \\usepackage{amssymb, booktabs, multirow}\n"
    paths["tex"].write_text(head + "\n".join(_latex(title, part) for title, part in titled.items()), "utf-8")
    return list(paths.values())


def as_text(parts: Mapping[str, pd.DataFrame]) -> list[str]:
    """Title, Markdown form and notes of each part, in turns; a part without a title has none."""
    return [text for title, part in parts.items() for text in (title, markdown(part), *notes_of(part)) if text]


def markdown(part: pd.DataFrame) -> str:
    """A printed form as a Markdown table with plain column names; it reads well in a terminal too."""
    flat = part.copy()
    flat.columns = [" ".join(c) if isinstance(c, tuple) else c for c in part.columns]
    return flat.reset_index().to_markdown(index=False, disable_numparse=True, stralign="right")


def styled(part: pd.DataFrame) -> Styler:
    """The printed form as a notebook or a page shows it: verdicts in colour, notes below."""
    style = part.style.map(_colour).format(escape="html").format_index(escape="html", axis=0)
    style = style.set_table_styles([{"selector": selector, "props": props} for selector, props in SHEET.items()])
    if notes := notes_of(part):
        style = style.set_caption("<br>".join(map(html.escape, notes)))
    return style


def notes_of(part: pd.DataFrame) -> list[str]:
    """The lines under a printed part."""
    return part.attrs.get("notes", [])


def _page(name: str, titled: Mapping[str, pd.DataFrame]) -> str:
    head = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    head += f"<title>Table {name.removeprefix('table')}</title></head><body>\n"
    parts = [
        f"<p>{html.escape(title)}</p>\n{styled(part).set_uuid(f'{name}-{i}').to_html()}"
        for i, (title, part) in enumerate(titled.items())
    ]
    return head + "\n".join(parts) + "\n</body></html>\n"


def _colour(text: str) -> str:
    """The style of a cell: that of the verdict whose symbol it starts or ends with, or of a cell without a number; a
    mark's is that of what does not fit."""
    if text.endswith(DAGGER):
        return COLOURS[OUTSIDE]
    word = next((word for word, sign in SYMBOLS.items() if sign in (text[:1], text[-1:])), None)
    return COLOURS.get(text if text in (FAILED, NOT_RUN) else word, "")


def _latex(title: str, part: pd.DataFrame) -> str:
    """The part as a LaTeX table: title as caption, notes below the grid."""
    safe = part.map(_escaped)
    safe.columns = _escaped_index(part.columns)
    safe.index = _escaped_index(part.index)
    text = safe.style.set_caption(_escaped(title)).to_latex(hrules=True)
    notes = "".join(f"\\\\ {{\\footnotesize {_escaped(note)}}}\n" for note in notes_of(part))
    return text.replace("\\end{table}", f"{notes}\\end{{table}}")


def _escaped(text: object) -> str:
    return "".join(LATEX.get(letter, letter) for letter in str(text)).replace(r"C\_p", "$C_p$")


def _escaped_index(index: pd.Index) -> pd.Index:
    names = [None if name is None else _escaped(name) for name in index.names]
    if isinstance(index, pd.MultiIndex):
        return pd.MultiIndex.from_tuples([tuple(map(_escaped, key)) for key in index], names=names)
    return pd.Index([_escaped(key) for key in index], name=names[0])
