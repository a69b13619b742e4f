"""The printed form of a table of decoding: lines paper, ours and difference for each of its rows, verdicts, notes."""

from pathlib import Path

import pandas as pd

from tevlib.report.files import DAGGER, DASH
from tevlib.report.names import METRICS, SUITE_NAMES, VERIFIER_NAMES
from tevlib.report.paper import MAIN_TARGET, MODELS, tolerance_text
from tevlib.report.tables import TABLES, Table, unlike_names
from tevlib.report.verdicts import MATCH, OUTSIDE, SYMBOLS, legend, row_verdict

MARKED = 4.0  # |z| above which a block length is marked: once in 16,000 cells by chance


def layout(table: pd.DataFrame) -> pd.DataFrame:
    """The printed form of a `decode_table`, as text: SR and τ per suite, and a verdict on each.

    Lines paper / ours / ours - paper for a row that the paper has, ours alone for another. The verdict on a row is the
    gravest of its cells', and its heading has the tolerance; a difference that was judged has its own sign. A dagger
    marks a block length that its own ceiling does not explain. `attrs["notes"]`: what stands under the table.
    """
    spec = TABLES[table.attrs["table"]]
    suites = list(dict.fromkeys(table["suite"]))
    lines = {}
    for values, block in table.groupby(list(spec.keys), sort=False):
        rows = block.set_index("suite")
        names = row_names(spec, dict(zip(spec.keys, values, strict=True)), block["drafter"].iloc[0])
        verdicts = [row_verdict(list(block[f"verdict_{metric}"])) for metric in METRICS]
        in_paper = block[[f"paper_{metric}" for metric in METRICS]].notna().any(axis=None)
        for line, shown in LINES.items():
            if in_paper or line == "ours":
                cells = [shown(rows.loc[suite], metric) for suite in suites for metric in METRICS]
                lines[*names, _label(line, spec, block)] = cells + (
                    verdicts if line == "ours" else [""] * len(verdicts)
                )
    columns = [(SUITE_NAMES.get(suite, suite), name) for suite in suites for name in METRICS.values()]
    columns += [("Verdict", f"{name} {tolerance_text(spec.name, metric)}") for metric, name in METRICS.items()]
    index = pd.MultiIndex.from_tuples(lines, names=[*spec.keys.values(), ""])
    printed = pd.DataFrame(list(lines.values()), index=index, columns=pd.MultiIndex.from_tuples(columns))
    printed.attrs["notes"] = _notes(table)
    return printed


def _label(line: str, spec: Table, block: pd.DataFrame) -> str:
    """How a line is called; the paper's line in a row of a target that it has not says which target stands there."""
    if line == "paper" and "target" in spec.keys and block["target"].iloc[0] not in MODELS:
        return f"paper ({MODELS[MAIN_TARGET]})"
    return line


def row_names(spec: Table, keys: dict, drafter: str) -> list[str]:
    """How a row of the table is called, one text per key."""
    shown = {
        "role": lambda role: spec.roles.get(role, f"{role} ({Path(drafter).name})"),
        "verifier": lambda verifier: VERIFIER_NAMES.get(verifier, verifier),
        "temperature": lambda temperature: f"{temperature:g}",
        "target": lambda target: Path(target).name,
        "budget": str,
    }
    return [shown[key](value) for key, value in keys.items()]


def number(value: float, form: str, otherwise: str) -> str:
    """The number as text; `otherwise` where there is none ("finished" without a number: no round was decoded)."""
    return format(value, form) if pd.notna(value) else otherwise.replace("finished", "undefined")


def difference(row: pd.Series, metric: str, digits: int = 2) -> str:
    """Ours minus the paper's as text, never "-0.00", with the sign of its verdict where it was judged."""
    verdict = row[f"verdict_{metric}"]
    sign = f" {SYMBOLS[verdict]}" if verdict in (MATCH, OUTSIDE) else ""
    return number(round(row[f"difference_{metric}"], digits) + 0.0, f"+.{digits}f", DASH) + sign


def is_marked(audit_z: float) -> bool:
    """Whether a block length is so far from its own ceiling that it must be looked at."""
    return abs(audit_z) > MARKED  # False for NaN


def _paper(row: pd.Series, metric: str) -> str:
    return number(row[f"paper_{metric}"], ".2f", DASH)


def _ours(row: pd.Series, metric: str) -> str:
    mark = DAGGER if metric == "tau" and is_marked(row["audit_z"]) else ""
    return number(row[metric], ".2f", row["status"]) + mark


LINES = {"paper": _paper, "ours": _ours, "ours - paper": difference}


def _notes(table: pd.DataFrame) -> list[str]:
    notes = legend([*table["verdict_speedup"], *table["verdict_tau"]], unlike_names(table["unlike"]))
    if table["audit_z"].map(is_marked).any():
        notes.insert(0, f"{DAGGER} |z| > {MARKED:g} in the audit: not the block length that its own ceilings predict.")
    return notes
