"""Records -> the paper's tables of decoding as frames, its numbers beside ours. Reads records only; no model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from tevlib.report.names import METHOD_NAMES, METRICS, OBJECTIVE_NAMES, VERIFIER_NAMES
from tevlib.report.paper import judged, paper_value, tolerance, unlike_paper
from tevlib.report.verdicts import REHEARSED, judge
from tevlib.suite.cells import AUTO
from tevlib.suite.metrics import RESAMPLES

CELL_FIELDS = (
    "profile", "target", "role", "builder", "verifier", "budget", "temperature", "top_p", "top_k", "max_new_tokens",
    "dtype", "seed",
)  # fmt: skip
HOW = ("drafter", "builder", "verifier", "budget")  # of a row; which of them may differ within a table, its keys say
INTERVALS = ("speedup", "tau", "tau_pooled")  # metrics whose records have a 95% interval over prompts
MEANS = ("speedup", "speedup_references", "speedup_end_to_end", "tau", "tau_pooled", "ceiling")
RECORDED = (*MEANS, "audit_z", "tokens_per_s", "ar_tokens_per_s", "prompts", "responses", "rounds")
ENDS = tuple(f"{name}_{end}" for name in (*INTERVALS, "ceiling") for end in ("low", "high"))
NUMBERS = (*RECORDED, *ENDS, "oracle_share")


@dataclass(frozen=True)
class Table:
    """A table of the paper: its name, what it is about, and the cell fields that name a row (with their headings)."""

    name: str
    title: str
    keys: dict[str, str]
    paper_setting: str
    roles: dict[str, str] = field(default_factory=dict)  # how roles are called; others: role and drafter
    methods: bool = False  # a role is a method: drafter, builder, verifier and, but for Table 5, budget are its own

    @property
    def number(self) -> str:
        return self.name.removeprefix("table")


TABLES = {
    "table1": Table(
        "table1",
        "methods",
        {"temperature": "T", "target": "Model", "role": "Method"},
        "Qwen3-4B with B = 64 on an H20",
        METHOD_NAMES,
        methods=True,
    ),
    "table2": Table(
        "table2",
        "training objectives, from one drafter, on the same data and steps",
        {"temperature": "T", "role": "Objective"},
        "Qwen3-4B with B = 64 on an H20",
        OBJECTIVE_NAMES,
    ),
    "table4": Table(
        "table4",
        "drafters crossed with verifiers",
        {"role": "Drafter", "verifier": "Verifier"},
        "Qwen3-4B with B = 64 on an H20 (original: released DFlash, exit: exit-trained)",
    ),
    "table5": Table(
        "table5",
        "tree budgets",
        {"temperature": "T", "budget": "B", "role": "Method"},
        "Qwen3-4B on an H20",
        METHOD_NAMES,
        methods=True,
    ),
}


def decode_table(name: str, outcomes: Sequence[dict]) -> pd.DataFrame:
    """One row per row of table `name` and suite, `average` included: ours, the paper's, their difference, the audit.

    outcomes: what `tevlib.suite.records.outcome` gives for every planned cell. `status` is finished, failed or not
    run; the average (unweighted, as in the paper) is only there when all its suites are, with intervals as of
    independent suites. `speedup` and `tau` have `paper_`, `difference_`, `tolerance_` (the largest difference that is a
    match) and `verdict_` (`tevlib.report.verdicts`) beside them; `unlike` names what keeps a cell from the paper's
    setting. `audit_z` is empty for the sampled chain, whose verifier also looks at the draft's law.
    `attrs["caption"]` says what was measured and where, `attrs["table"]` is `name`.

    Raises `ValueError` for no cells, and for a mix: cells that differ in more than the table's keys and the suite, or
    records of different schema, machine or target revision.
    """
    table = TABLES[name]
    if not outcomes:
        raise ValueError(f"table {table.number} needs at least one cell")
    _refuse_mix(table, outcomes)
    frame = pd.DataFrame([_row(table, outcome) for outcome in outcomes])
    keys = list(table.keys)
    if frame.duplicated([*keys, "suite"]).any():
        raise ValueError(f"table {table.number} got two cells for the same {', '.join(keys)} and suite")
    blocks = []
    for _, block in frame.astype(dict.fromkeys(NUMBERS, float)).groupby(keys, sort=False):
        blocks += [block, _average(block)]
    frame = pd.concat(blocks, ignore_index=True)
    for metric in METRICS:
        lines = frame.to_dict("records")
        put_beside(frame, name, metric, [paper_value(name, line, line["suite"], metric) for line in lines])
    frame.attrs |= {"caption": _caption(table, outcomes), "table": name}
    return frame


def put_beside(frame: pd.DataFrame, name: str, metric: str, paper: Sequence[float | None]) -> None:
    """Add the `paper`'s values of a metric to the frame of table `name`, with difference, tolerance and verdict."""
    frame[f"paper_{metric}"] = pd.Series(paper, dtype=float)
    frame[f"difference_{metric}"] = frame[metric] - frame[f"paper_{metric}"]
    frame[f"tolerance_{metric}"] = pd.Series([tolerance(name, metric, value) for value in paper], dtype=float)
    frame[f"verdict_{metric}"] = [
        judge(
            row["status"],
            row[metric],
            row[f"paper_{metric}"],
            row[f"tolerance_{metric}"],
            judged(metric, unlike_names([row["unlike"]])),
            (row[f"{metric}_low"], row[f"{metric}_high"]),
            row["unlike"] == REHEARSED,
        )
        for row in frame.to_dict("records")
    ]


def refuse_mix(number: str, outcomes: Sequence[dict]) -> None:
    """Raises `ValueError` for records of different schema, machine or target revision in table `number`."""
    records = [o for o in outcomes if o["status"] == "finished"]
    one_value(number, "schema_version", [r["schema_version"] for r in records])
    one_value(number, "machine", [f"{r['device']['name']}, threads: {r['device']['threads']}" for r in records])
    for target in dict.fromkeys(r["cell"]["target"] for r in records):
        revisions = [r["target"]["revision"] for r in records if r["cell"]["target"] == target]
        one_value(number, "target revision", revisions)


def one_value(number: str, name: str, values: list) -> None:
    """Raises `ValueError` where `values` of the field `name` differ between the cells of table `number`."""
    if len(found := sorted({str(value) for value in values})) > 1:
        raise ValueError(f"table {number} needs one {name} for all its cells, got {', '.join(found)}")


def joint_status(states: Sequence[str]) -> str:
    """The status of an average: finished where all its cells are, else failed where one is, else not run."""
    return "finished" if set(states) == {"finished"} else "failed" if "failed" in set(states) else "not run"


def unlike_names(texts: Iterable[str]) -> list[str]:
    """The different names in cells of the column `unlike`, in their order."""
    return list(dict.fromkeys(name for text in texts for name in text.split(", ") if name))


def machine_of(outcomes: Sequence[dict]) -> str:
    """What the finished cells ran on, as text."""
    records = [o for o in outcomes if o["status"] == "finished"]
    if not records:
        return "nothing run yet"
    device = records[0]["device"]
    return device["name"] + (f", {device['threads']} threads" if device["threads"] else "")


def _row(table: Table, outcome: dict) -> dict:
    cell = outcome["cell"]
    row = {key: cell[key] for key in (*table.keys, *HOW)} | {"suite": Path(cell["suite"]).stem}
    row |= {"status": outcome["status"], "hash": outcome.get("hash"), "unlike": ""} | dict.fromkeys(NUMBERS)
    if outcome["status"] != "finished":
        return row
    metrics = outcome["metrics"]
    row |= {name: metrics[name] for name in RECORDED}
    row["oracle_share"] = metrics.get("oracle_share")  # earlier records have none
    for name in INTERVALS:
        row[f"{name}_low"], row[f"{name}_high"] = metrics[f"{name}_ci95"] or (None, None)
    row["ceiling_low"], row["ceiling_high"] = _ceiling_interval(outcome["responses"])
    if cell["builder"] == "sampled_chain":
        row["audit_z"] = None
    return row | {"unlike": ", ".join(unlike_paper(table.name, outcome))}


def _ceiling_interval(responses: Sequence[dict]) -> tuple[float, float] | tuple[None, None]:
    """The ends of the 95% interval of the mean 1 + C_p over rounds when prompts are drawn again; None below two."""
    rows = pd.DataFrame([row for row in responses if row["status"] == "ok"])
    sums = rows.groupby("id")[["ceilings", "rounds"]].sum().to_numpy(float) if len(rows) else np.empty((0, 2))
    if len(sums) < 2 or not sums[:, 1].all():
        return None, None
    draws = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    ceilings, rounds = sums[draws].sum(1).T
    low, high = np.quantile(ceilings / rounds, [0.025, 0.975])
    return float(low), float(high)


def _average(block: pd.DataFrame) -> pd.DataFrame:
    """The unweighted mean over the suites of one row of the table; empty numbers unless all are finished."""
    first = block.iloc[0]
    row = {name: first[name] for name in block.columns} | {"suite": "average", "status": joint_status(block["status"])}
    row |= {"hash": None} | dict.fromkeys(NUMBERS, np.nan)
    row["unlike"] = ", ".join(unlike_names(block["unlike"]))
    if row["status"] == "finished":
        row |= {name: block[name].mean(skipna=False) for name in MEANS}
        for name, (end, sign) in ((n, e) for n in ("speedup", "tau") for e in (("low", -1), ("high", 1))):
            deviations = (block[f"{name}_{end}"] - block[name]).to_numpy()
            row[f"{name}_{end}"] = row[name] + sign * np.sqrt((deviations**2).sum()) / len(block)
    return pd.DataFrame([row])


def _refuse_mix(table: Table, outcomes: Sequence[dict]) -> None:
    refuse_mix(table.number, outcomes)
    for name in CELL_FIELDS:
        own = {"role", "builder", "verifier", "budget"} if table.methods else {"role"}
        if name not in table.keys and name not in own:
            one_value(table.number, name, [o["cell"][name] for o in outcomes])


def _caption(table: Table, outcomes: Sequence[dict]) -> str:
    cell, machine = outcomes[0]["cell"], machine_of(outcomes)
    verifier = VERIFIER_NAMES.get(cell["verifier"], cell["verifier"])
    fixed = [f"target {cell['target']}"] if "target" not in table.keys else []
    fixed += [cell["dtype"]]
    fixed += [f"builder {cell['builder']}"] if not table.methods else []
    numbers = [o["cell"]["budget"] for o in outcomes if o["cell"]["budget"] != AUTO]
    fixed += [f"B = {max(numbers, default=AUTO)}"] if "budget" not in table.keys else []
    fixed += [f"T = {cell['temperature']:g}"] if "temperature" not in table.keys else []
    fixed += [f"verifier {verifier}"] if "verifier" not in table.keys and not table.methods else []
    text = (
        f"Table {table.number}, {table.title}; profile {cell['profile']}: {', '.join(fixed)}, at most "
        f"{cell['max_new_tokens']} new tokens; {machine}. "
        "SR: autoregressive over speculative seconds per token; τ: mean block length, bonus included."
    )
    if cell["profile"] != "paper":
        text += f" The paper's rows are {table.paper_setting}: compare our rows with each other, not with those."
    return text
