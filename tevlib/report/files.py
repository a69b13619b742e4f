"""A table's files: CSV with every number, and its printed parts as Markdown, HTML and LaTeX."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

DASH = "—"


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
    styles = [part.style.set_caption(title) for title, part in titled.items()]
    title = f"Table {name.removeprefix('table')}"
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>\n'
    body = "\n".join(style.set_uuid(f"{name}-{i}").to_html() for i, style in enumerate(styles))
    paths["html"].write_text(f"{head}{body}\n</body></html>\n", encoding="utf-8")
    paths["tex"].write_text(
        "\n".join(style.to_latex(hrules=True, convert_css=True) for style in _for_latex(titled)), "utf-8"
    )
    return list(paths.values())


def as_text(parts: Mapping[str, pd.DataFrame]) -> list[str]:
    """Title and Markdown form of each part, in turns; a part without a title has none."""
    return [text for title, part in parts.items() for text in (title, markdown(part)) if text]


def markdown(part: pd.DataFrame) -> str:
    """A printed form as a Markdown table with plain column names; it reads well in a terminal too."""
    flat = part.copy()
    flat.columns = [" ".join(c) if isinstance(c, tuple) else c for c in part.columns]
    return flat.reset_index().to_markdown(index=False, disable_numparse=True, stralign="right")


def _for_latex(titled: Mapping[str, pd.DataFrame]) -> list:
    """Stylers whose text LaTeX takes: the two Greek and mathematical headings in math mode, the rest escaped."""
    math = {
        "τ": r"$\tau$",
        "1 + C_p": "$1 + C_p$",
        "τ pooled": r"$\tau$ pooled",
        "τ 95%": r"$\tau$ 95\%",
        "SR 95%": r"SR 95\%",
        "τ change": r"$\tau$ change",
        "τ change, paper": r"$\tau$ change, paper",
        "1 + C_p change": "$1 + C_p$ change",
    }
    styles = []
    for title, part in titled.items():
        renamed = part.rename(columns=math).replace({DASH: "---"}).replace("%", r"\\%", regex=True)
        text = title.replace("τ", r"$\tau$").replace("_", r"\_").replace("&", r"\&").replace("%", r"\%")
        styles.append(renamed.style.set_caption(text))
    return styles
