"""Records -> Table 3: milliseconds of decision and commit, every verifier on the same replayed trees. No model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tevlib.report.files import DASH
from tevlib.report.layout import difference, number
from tevlib.report.names import SHAPE_NAMES, SUITE_NAMES, VERIFIER_NAMES
from tevlib.report.paper import paper_latency, tolerance_text, unlike_paper
from tevlib.report.tables import joint_status, machine_of, one_value, put_beside, refuse_mix, unlike_names
from tevlib.report.verdicts import legend, row_verdict

# The names that `tevlib.suite.verifier_cell` times, kept here so that a table loads no torch.
TIMED = ("predraw", "predraw_reference", "predraw_lazy", "sequential_residual", "tev_parallel", "tev_descent")
TEV_FORMS = ("tev_parallel", "tev_descent")
CELL_FIELDS = ("profile", "target", "drafter", "prompts", "rounds", "repeats", "max_new_tokens", "dtype", "seed")
KEYS = ["shape", "temperature", "budget"]
METRICS = {"ms": "ms", "reduction": "reduction"}
NUMBERS = ("ms", "ms_low", "ms_high", "reduction", "reduction_low", "reduction_high", "rounds", "nodes", "internal")


def latency_table(outcomes: Sequence[dict]) -> pd.DataFrame:
    """One row per shape, temperature, budget, verifier and suite, `average` included: `ms`, interval, paper's `ms`.

    outcomes: what `tevlib.suite.records.outcome` gives for every planned `VerifierCell`. `reduction` is of a form
    of TEV, in per cent against predraw on the same rounds. `paper_`, `difference_`, `tolerance_`, `verdict_`, `unlike`
    and `attrs` are as in `decode_table`; intervals are over rounds. Raises `ValueError` for no cells and a mix.
    """
    if not outcomes:
        raise ValueError("table 3 needs at least one cell")
    refuse_mix("3", outcomes)
    for name in CELL_FIELDS:
        one_value("3", name, [o["cell"][name] for o in outcomes])
    frame = pd.DataFrame([_row(outcome, verifier) for outcome in outcomes for verifier in TIMED])
    if frame.duplicated([*KEYS, "verifier", "suite"]).any():
        raise ValueError("table 3 got two cells for the same shape, temperature, budget and suite")
    blocks = []
    for _, block in frame.astype(dict.fromkeys(NUMBERS, float)).groupby([*KEYS, "verifier"], sort=False):
        blocks += [block, _average(block)]
    frame = pd.concat(blocks, ignore_index=True)
    for metric in METRICS:
        lines = frame.to_dict("records")
        put_beside(frame, "table3", metric, [paper_latency(line, line["suite"], metric) for line in lines])
    frame.attrs |= {"caption": _caption(outcomes), "table": "table3"}
    return frame


def latency_layout(table: pd.DataFrame) -> pd.DataFrame:
    """The printed form: lines paper / ours / ours - paper per shape, temperature, budget and verifier, per suite.

    Milliseconds, and TEV's reduction in brackets. Lines, verdicts and notes are as in `tevlib.report.layout.layout`.
    """
    suites = list(dict.fromkeys(table["suite"]))
    lines = {}
    for (shape, temperature, budget, verifier), block in table.groupby([*KEYS, "verifier"], sort=False):
        rows = block.set_index("suite")
        head = (SHAPE_NAMES[shape], f"{temperature:g}", str(budget), VERIFIER_NAMES[verifier])
        verdicts = [row_verdict(list(block["verdict_ms"]))]
        verdicts.append(row_verdict(list(block["verdict_reduction"])) if verifier in TEV_FORMS else DASH)
        for line, shown in LINES.items():
            if block["paper_ms"].notna().any() or line == "ours":
                cells = [shown(rows.loc[suite]) for suite in suites]
                lines[*head, line] = cells + (verdicts if line == "ours" else ["", ""])
    index = pd.MultiIndex.from_tuples(lines, names=["Rows", "T", "B", "Verifier", ""])
    columns = [SUITE_NAMES.get(s, s) for s in suites]
    columns += [f"Verdict {name} {tolerance_text('table3', metric)}" for metric, name in METRICS.items()]
    printed = pd.DataFrame(list(lines.values()), index=index, columns=columns)
    printed.attrs["notes"] = legend(list(table["verdict_ms"]), unlike_names(table["unlike"]))
    return printed


def latency_audit(table: pd.DataFrame) -> pd.DataFrame:
    """What the times stand on, one line per row and suite, as text: 95% intervals over rounds, rounds, tree sizes."""
    rows = table[table["suite"] != "average"]
    names = [
        (SHAPE_NAMES[row.shape], f"{row.temperature:g}", str(row.budget), VERIFIER_NAMES[row.verifier],
         SUITE_NAMES.get(row.suite, row.suite))
        for row in rows.itertuples()
    ]  # fmt: skip
    shown = {
        "ms": [number(row.ms, ".3f", row.status) for row in rows.itertuples()],
        "ms 95%": [_interval(row.ms_low, row.ms_high, ".3f") for row in rows.itertuples()],
        "reduction %": [number(row.reduction, ".1f", DASH) for row in rows.itertuples()],
        "reduction 95%": [_interval(row.reduction_low, row.reduction_high, ".1f") for row in rows.itertuples()],
        "rounds": [number(row.rounds, ".0f", row.status) for row in rows.itertuples()],
        "nodes": [number(row.nodes, ".1f", row.status) for row in rows.itertuples()],
        "with children": [number(row.internal, ".1f", row.status) for row in rows.itertuples()],
    }
    return pd.DataFrame(shown, index=pd.MultiIndex.from_tuples(names, names=["Rows", "T", "B", "Verifier", "Suite"]))


def _row(outcome: dict, verifier: str) -> dict:
    cell = outcome["cell"]
    row = {key: cell[key] for key in KEYS} | {"verifier": verifier, "suite": Path(cell["suite"]).stem}
    row |= {"status": outcome["status"], "hash": outcome.get("hash"), "unlike": ""} | dict.fromkeys(NUMBERS)
    if outcome["status"] != "finished":
        return row
    metrics = outcome["metrics"]
    row["ms"] = metrics[f"{verifier}_ms"]
    row["ms_low"], row["ms_high"] = metrics[f"{verifier}_ms_ci95"]
    if verifier in TEV_FORMS:
        row["reduction"] = metrics[f"{verifier}_reduction"]
        row["reduction_low"], row["reduction_high"] = metrics[f"{verifier}_reduction_ci95"]
    row |= {name: metrics[name] for name in ("rounds", "nodes", "internal")}
    return row | {"unlike": ", ".join(unlike_paper("table3", outcome))}


def _average(block: pd.DataFrame) -> pd.DataFrame:
    """The unweighted mean over the suites, of TEV's reductions too, as the paper's averages are."""
    first = block.iloc[0]
    row = {name: first[name] for name in block.columns} | {"suite": "average", "status": joint_status(block["status"])}
    row |= {"hash": None, "unlike": ", ".join(unlike_names(block["unlike"]))} | dict.fromkeys(NUMBERS, np.nan)
    if row["status"] == "finished":
        row |= {name: block[name].mean(skipna=False) for name in ("ms", "reduction", "nodes", "internal")}
    return pd.DataFrame([row])


def _paper(row: pd.Series) -> str:
    return _with_reduction(row, "paper_", DASH)


def _ours(row: pd.Series) -> str:
    return _with_reduction(row, "", row["status"])


def _with_reduction(row: pd.Series, prefix: str, otherwise: str) -> str:
    text, less = number(row[f"{prefix}ms"], ".3f", otherwise), row[f"{prefix}reduction"]
    return text if pd.isna(less) else f"{text} ({-less:+.1f}%)"


LINES = {"paper": _paper, "ours": _ours, "ours - paper": lambda row: difference(row, "ms", digits=3)}


def _interval(low: float, high: float, form: str) -> str:
    return f"{low:{form}}..{high:{form}}" if pd.notna(low) else DASH


def _caption(outcomes: Sequence[dict]) -> str:
    cell = outcomes[0]["cell"]
    text = (
        f"Table 3, verifier latency; profile {cell['profile']}: trees of {cell['target']} in {cell['dtype']}, drafter "
        f"{Path(cell['drafter']).name}, {cell['rounds']} rounds a cell; {machine_of(outcomes)}. Milliseconds per round "
        "of decision and cache commit, without the target's pass; in brackets TEV against predraw on the same rounds."
        " Predraw is our best batched form; the reference form is softmax and multinomial of all rows, the lazy one"
        " draws where the walk gets to. The paper's TEV stands beside the parallel form."
    )
    if cell["profile"] != "paper":
        text += " The paper's rows are Qwen3-4B on an H20."
    return text
