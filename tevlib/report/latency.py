"""Records -> Table 3: milliseconds of decision and commit, every verifier on the same replayed trees. No model."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tevlib.report.files import DASH
from tevlib.report.paper import paper_latency
from tevlib.report.tables import SUITE_NAMES, VERIFIER_NAMES, machine_of, one_value, refuse_mix

TIMED = ("predraw", "sequential_residual", "tev")
SHAPE_NAMES = {"own": "this target", "qwen3_4b": "sizes of Qwen3-4B"}
CELL_FIELDS = ("profile", "target", "drafter", "prompts", "rounds", "repeats", "max_new_tokens", "dtype", "seed")
KEYS = ["shape", "temperature", "budget"]


def latency_table(outcomes: Sequence[dict]) -> pd.DataFrame:
    """One row per shape, temperature, budget, verifier and suite, `average` included: `ms`, interval, paper's `ms`.

    outcomes: what `tevlib.suite.records.outcome` gives for every planned `VerifierCell`. `reduction` is TEV's, in per
    cent against predraw on the same rounds. `attrs` as in `decode_table`. Raises `ValueError` for no cells and a mix.
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
    for values, block in frame.groupby([*KEYS, "verifier"], sort=False):
        blocks += [block, _average(dict(zip([*KEYS, "verifier"], values, strict=True)), block)]
    frame = pd.concat(blocks, ignore_index=True)
    rows = frame.to_dict("records")
    for metric in ("ms", "reduction"):
        frame[metric] = frame[metric].astype(float)
        frame[f"paper_{metric}"] = pd.Series([paper_latency(row, row["suite"], metric) for row in rows], dtype=float)
    frame.attrs |= {"caption": _caption(outcomes), "table": "table3"}
    return frame


def latency_layout(table: pd.DataFrame) -> pd.DataFrame:
    """The printed form: lines paper / ours per shape, temperature, budget and verifier, milliseconds per suite."""
    suites = list(dict.fromkeys(table["suite"]))
    lines = {}
    for (shape, temperature, budget, verifier), block in table.groupby([*KEYS, "verifier"], sort=False):
        rows = block.set_index("suite")
        head = (SHAPE_NAMES[shape], f"{temperature:g}", str(budget), VERIFIER_NAMES[verifier])
        lines[*head, "paper"] = [_shown(rows.loc[suite], "paper_", DASH) for suite in suites]
        lines[*head, "ours"] = [_shown(rows.loc[suite], "", rows.loc[suite, "status"]) for suite in suites]
    index = pd.MultiIndex.from_tuples(lines, names=["Rows", "T", "B", "Verifier", ""])
    return pd.DataFrame(list(lines.values()), index=index, columns=[SUITE_NAMES.get(s, s) for s in suites])


def _row(outcome: dict, verifier: str) -> dict:
    cell, metrics = outcome["cell"], outcome.get("metrics") if outcome["status"] == "finished" else None
    row = {key: cell[key] for key in KEYS} | {"verifier": verifier, "suite": Path(cell["suite"]).stem}
    row |= {"status": outcome["status"], "hash": outcome.get("hash")}
    if metrics is None:
        return row | dict.fromkeys(("ms", "ms_low", "ms_high", "reduction", "rounds", "nodes", "internal"))
    row["ms"] = metrics[f"{verifier}_ms"]
    row["ms_low"], row["ms_high"] = metrics[f"{verifier}_ms_ci95"]
    row["reduction"] = metrics["reduction"] if verifier == "tev" else None
    return row | {name: metrics[name] for name in ("rounds", "nodes", "internal")}


def _average(keys: dict, block: pd.DataFrame) -> pd.DataFrame:
    """The unweighted mean over the suites; TEV's reduction of it is that of the means."""
    states = list(block["status"])
    status = "finished" if set(states) == {"finished"} else "failed" if "failed" in states else "not run"
    row = keys | {"suite": "average", "status": status, "hash": None}
    row |= dict.fromkeys(("ms", "ms_low", "ms_high", "reduction", "rounds", "nodes", "internal"))
    if status == "finished":
        row |= {name: block[name].astype(float).mean() for name in ("ms", "reduction", "nodes", "internal")}
    return pd.DataFrame([row])


def _shown(row: pd.Series, prefix: str, otherwise: str) -> str:
    if pd.isna(row[f"{prefix}ms"]):
        return otherwise
    text, less = f"{row[f'{prefix}ms']:.2f}", row[f"{prefix}reduction"]
    return text if pd.isna(less) else f"{text} ({-less:+.1f}%)"


def _caption(outcomes: Sequence[dict]) -> str:
    cell = outcomes[0]["cell"]
    text = (
        f"Table 3, verifier latency; profile {cell['profile']}: trees of {cell['target']} in {cell['dtype']}, drafter "
        f"{Path(cell['drafter']).name}, {cell['rounds']} rounds a cell; {machine_of(outcomes)}. Milliseconds per round "
        "of decision and cache commit, without the target's pass; in brackets TEV against predraw on the same rounds."
    )
    if cell["profile"] != "paper":
        text += " The paper's rows are Qwen3-4B on an H20."
    return text
