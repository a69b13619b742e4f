"""One HTML page of a profile: tables, figures, audit, provenance and gaps. It asks nobody for anything."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd

from tevlib.report.build import build_table, printed
from tevlib.report.figures.draw import Drawn, draw_figures, run_command
from tevlib.report.figures.measured import audited
from tevlib.report.files import DAGGER, notes_of
from tevlib.report.layout import MARKED, is_marked
from tevlib.report.verdicts import FAILED, NOT_RUN, SYMBOLS
from tevlib.suite.paths import home
from tevlib.suite.profile import load_profile
from tevlib.suite.records import outcome

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
UNKNOWN = "not recorded"
AUDIT = ("Audit", "Speed-ups by every definition")  # printed parts that stand in the page's own section


@dataclass(frozen=True)
class Report:
    """What was written: the page, and the figures with those that could not be drawn."""

    path: Path
    figures: list[Drawn]

    def __str__(self) -> str:
        drawn = [figure for figure in self.figures if figure.paths]
        lines = [f"report: {self.path}"]
        if drawn:
            lines.append(f"figures: {drawn[0].paths['json'].parent} ({', '.join(figure.name for figure in drawn)})")
        lines += [
            f"not drawn: {figure.name}: {figure.why}; {figure.command}" for figure in self.figures if not figure.paths
        ]
        return "\n".join(lines)


def write_report(profile: str = "laptop", output: Path | str | None = None) -> Report:
    """Figures, tables and page of a profile from the records that there are, written under the results folder.

    Figures go to `figures/<profile>/`, tables to `data/tables/`, the page to `output` or `runs/<profile>/report.html`.
    Nothing is computed that is not in a record: what is missing or failed says so, with the command that would fill it.
    The same records give the same bytes. Raises `ValueError` for an unknown profile.
    """
    outcomes = [outcome(cell) for cell in load_profile(profile)]
    name = outcomes[0]["cell"]["profile"]
    figures = draw_figures(outcomes, profile, home() / "figures" / name)
    path = Path(output) if output else home() / "runs" / name / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(outcomes, figures, profile), encoding="utf-8")
    return Report(path, figures)


def page(outcomes: Sequence[Mapping], figures: Sequence[Drawn], profile: str) -> str:
    """The page as text. `profile` as the command line calls it, for the commands in it."""
    by_table: dict[str, list[Mapping]] = {}
    for o in outcomes:
        by_table.setdefault(o["cell"]["table"], []).append(o)
    sections = {
        "Cells": _cells(by_table, profile),
        "Tables": "".join(_table(name, cells, profile) for name, cells in sorted(by_table.items())),
        "Figures": "".join(_figure(figure) for figure in figures),
        "Audit": _audit(by_table),
        "Provenance": _provenance(outcomes),
    }
    links = "".join(f'<a href="#{name.lower()}">{name}</a>' for name in sections)
    body = "".join(f'<section id="{name.lower()}"><h2>{name}</h2>{text}</section>' for name, text in sections.items())
    title = f"tevlib, profile {outcomes[0]['cell']['profile']}"
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"<p>{escape(_summary(outcomes))}</p>\n<nav>{links}</nav>\n{body}\n</body>\n</html>\n"
    )


def _summary(outcomes: Sequence[Mapping]) -> str:
    records = _records(outcomes)
    targets = sorted({o["cell"]["target"] for o in outcomes})
    text = f"Exit-guided speculative decoding with {', '.join(targets)}: {len(records)} records"
    if records:
        dates = sorted(record["started_at"][:10] for record in records)
        text += f" of {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "")
        text += f", on {', '.join(sorted({record['device']['name'] for record in records}))}"
    return text + ". Every number comes from a record; the paper's numbers stand beside ours."


def _cells(by_table: Mapping[str, Sequence[Mapping]], profile: str) -> str:
    """What is finished, failed and not run, table by table, with the command that would fill it; and every failure."""
    lines, failures = [], []
    for name, cells in sorted(by_table.items()):
        states = [o["status"] for o in cells]
        whole = states.count("finished") == len(cells)
        counts = [str(states.count(state)) for state in ("finished", "failed", "not run")]
        fill = "nothing is missing" if whole else _code(run_command(profile, [name]))
        lines.append([_title(name), str(len(cells)), *counts, fill])
        failures += [
            [_title(name), escape(_cell_name(o["cell"])), f'<span class="failed">{escape(str(o["error"]))}</span>']
            for o in cells
            if o["status"] == "failed"
        ]
    text = _grid(["table", "planned", "finished", "failed", "not run", "to fill the gap"], lines)
    if failures:
        text += f'<h3 class="failed">Failed cells</h3>{_grid(["table", "cell", "error"], failures)}'
    return text


def _table(name: str, cells: Sequence[Mapping], profile: str) -> str:
    """A table's printed parts, but for the audit; or why its records cannot stand in one table."""
    text = f'<h3 id="{name}">{_title(name)}</h3>'
    try:
        found = build_table(name, cells)
    except ValueError as error:
        return f'{text}<div class="gap"><p class="failed">{escape(str(error))}</p></div>'
    text += f'<p class="caption">{escape(found.attrs["caption"])}</p>'
    for title, part in printed(found).items():
        if title not in AUDIT:
            text += (f"<h4>{escape(title)}</h4>" if title else "") + as_html(part)
    if any(o["status"] != "finished" for o in cells):
        text += f"<p>Some cells are missing or failed: {_code(run_command(profile, [name]))}</p>"
    return text


def _figure(figure: Drawn) -> str:
    head = f'<h3 id="figure-{figure.name}">{escape(figure.title)}</h3>'
    if not figure.paths:
        return f'{head}<div class="gap"><p>Not drawn: {escape(figure.why)}.</p><p>{_code(figure.command)}</p></div>'
    data = base64.b64encode(figure.paths["svg"].read_bytes()).decode()
    return (
        f'<figure>{head}<div class="box picture"><img alt="{escape(figure.title)}" '
        f'src="data:image/svg+xml;base64,{data}"></div><figcaption>{escape(figure.caption)}</figcaption></figure>'
    )


def _audit(by_table: Mapping[str, Sequence[Mapping]]) -> str:
    """How far block lengths are from their own ceilings: counts, and every cell, table by table, marked ones open."""
    cells = audited([o for cells in by_table.values() for o in cells])
    text = "<p>No decode cell is finished yet.</p>"
    if cells:
        scores = [o["metrics"]["audit_z"] for o in cells]
        beyond, marked = sum(abs(z) > 3 for z in scores), sum(map(is_marked, scores))
        worst, chance = max(map(abs, scores)), 0.0027 * sum(z != 0 for z in scores)
        text = (
            f"<p>{len(cells)} decode cells with a saturated verifier, each once. The largest |z| between a cell's mean "
            f"block length and the mean of its own ceilings 1 + C_p is {worst:.2f}. "
            f"Over 3: {beyond} (by chance about {chance:.1f}). "
        )
        text += (
            f'<span class="failed">Over {MARKED:g}: {marked}, marked below.</span>'
            if marked
            else f"Over {MARKED:g}: none."
        )
        text += "</p>"
    for name, found in sorted(by_table.items()):
        try:
            table = build_table(name, found)
        except ValueError:
            continue  # said above, at the table
        opened = " open" if any(is_marked(o["metrics"]["audit_z"]) for o in audited(found)) else ""
        parts = [f"<h4>{escape(title)}</h4>{as_html(part)}" for title, part in printed(table).items() if title in AUDIT]
        text += f"<details{opened}><summary>{_title(name)}, cell by cell</summary>{''.join(parts)}</details>"
    return text


def _provenance(outcomes: Sequence[Mapping]) -> str:
    """Machine, software, commits, dates, target and drafters of the records, each with the number of records."""
    records = _records(outcomes)
    if not records:
        return "<p>No record yet.</p>"
    origin, started = [record["provenance"] for record in records], [record["started_at"] for record in records]
    versions = sorted({package for one in origin for package in one.get("versions", {})})
    rows = {
        "records": [str(len(records))],
        "hardware": _counted(f"{r['device']['name']}, {r['device']['threads'] or 'no'} threads" for r in records),
        "processor": _counted(f"{one.get('cpu', UNKNOWN)}, {one.get('cpu_count', '?')} cores" for one in origin),
        "platform": _counted(one.get("platform", UNKNOWN) for one in origin),
        "commit": _counted(
            (one.get("git_commit") or UNKNOWN)[:12] + (" with local changes" if one.get("git_dirty") else "")
            for one in origin
        ),
        "python": _counted(one.get("python", UNKNOWN) for one in origin),
        **{name: _counted(str(one.get("versions", {}).get(name) or UNKNOWN) for one in origin) for name in versions},
        "started": [" to ".join(sorted({min(started), max(started)}))],
        "target": _counted(f"{r['cell']['target']}, {r['target']['revision']}" for r in records),
        "drafters": _counted(
            f"{r['cell']['drafter']}, sha256 {r['drafter'].get('sha256', UNKNOWN)[:12]}" for r in records
        ),
    }
    lines = [[escape(name), "<br>".join(map(escape, found))] for name, found in rows.items()]
    return _grid(["what", "found in the records"], lines)


def as_html(part: pd.DataFrame) -> str:
    """A printed part of a table as HTML in a box that scrolls by itself, notes below; every text escaped, signs in
    colour."""
    text = re.sub(r"<td>([^<]*)</td>", _cell, part.to_html(border=0, escape=True, na_rep=""))
    notes = "".join(f'<p class="caption">{escape(note)}</p>' for note in notes_of(part))
    return f'<div class="box" tabindex="0">{text}</div>{notes}'


def _cell(found: re.Match) -> str:
    """A cell with its class: that of its verdict's sign, of a mark, or of a cell without a number."""
    text = found[1]
    signs = (text[:1], text[-1:])
    word = text if text in (FAILED, NOT_RUN) else next((word for word, sign in SYMBOLS.items() if sign in signs), "")
    name = "marked" if text.endswith(DAGGER) else word.replace(" ", "-")
    return f'<td class="{name}">{text}</td>' if name else found[0]


def _grid(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A plain table; its cells are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f'<div class="box text" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>'


def _records(outcomes: Sequence[Mapping]) -> list[Mapping]:
    """The finished records, each once."""
    return list({o["hash"]: o for o in outcomes if o["status"] == "finished"}.values())


def _counted(values: Iterable[str]) -> list[str]:
    """Different values with how many records have each, the commonest first; without a number where there is one."""
    counts = pd.Series(list(values)).value_counts(sort=False).to_dict()
    order = sorted(counts, key=lambda value: (-counts[value], value))
    return order if len(order) == 1 else [f"{value} ({counts[value]} records)" for value in order]


def _cell_name(cell: Mapping) -> str:
    what = f"{cell['role']} + {cell['verifier']}" if "role" in cell else f"verifiers, {cell['shape']}"
    return f"{what} on {Path(cell['suite']).stem}, B = {cell['budget']}, T = {cell['temperature']:g}"


def _title(table: str) -> str:
    return f"Table {escape(table.removeprefix('table'))}"


def _code(command: str) -> str:
    return f"<code>{escape(command)}</code>"
