"""Records -> the paper's tables of decoding, its numbers beside ours. Reads records only; no model, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from tevlib.report.files import DASH
from tevlib.report.paper import VERIFIERS, paper_value

SUITE_NAMES = {
    "mt_bench": "MT-Bench",
    "humaneval": "HumanEval",
    "gsm8k": "GSM8K",
    "math500": "MATH-500",
    "average": "Average",
}
METRICS = {"speedup": "SR", "tau": "τ"}
VERIFIER_NAMES = VERIFIERS | {"sequential_residual": "Sequential residual", "greedy": "Greedy"}
METHOD_NAMES = {
    "ddtree": "DDTree",
    "opd": "Draft-OPD",
    "exit": "ExitTrain + TEV",
    "gain": "Gain + TEV (ours, not the paper's)",
    "dflash_chain": "DFlash, greedy chain (not in the paper's tables)",
    "sampled_chain": "DFlash, sampled chain (not in the paper's tables)",
    "autoregressive": "Root alone, no draft (not in the paper's tables)",
}
OBJECTIVE_NAMES = {
    "original": "Original drafter",
    "finetune": "Finetuned, token loss alone",
    "prefix": "Prefix weight P(v)",
    "exit": "Exit weight w(v)",
    "opd": "Draft-OPD (not in the paper's Table 2)",
    "gain": "Gain (ours, not the paper's)",
}
CELL_FIELDS = (
    "profile", "target", "role", "builder", "verifier", "budget", "temperature", "top_p", "top_k", "max_new_tokens",
    "dtype", "seed",
)  # fmt: skip


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
    run; the average (unweighted, as in the paper) is only there when all its suites are. `attrs["caption"]` says what
    was measured and where, `attrs["table"]` is `name`.

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
    for values, block in frame.groupby(keys, sort=False):
        blocks += [block, _average(dict(zip(keys, values, strict=True)), block)]
    frame = pd.concat(blocks, ignore_index=True).astype({name: float for name in _NUMBERS})
    cells = frame[keys].to_dict("records")
    for metric in METRICS:
        found = [paper_value(name, cell, suite, metric) for cell, suite in zip(cells, frame["suite"], strict=True)]
        frame[f"paper_{metric}"] = pd.Series(found, dtype=float)
        frame[f"difference_{metric}"] = frame[metric] - frame[f"paper_{metric}"]
    frame.attrs |= {"caption": _caption(table, outcomes), "table": name}
    return frame


def layout(table: pd.DataFrame) -> pd.DataFrame:
    """The printed form: lines paper / ours / difference per row of the table, SR and τ per suite, as text."""
    spec = TABLES[table.attrs["table"]]
    keys = spec.keys
    suites = list(dict.fromkeys(table["suite"]))
    lines = {}
    for values, block in table.groupby(list(keys), sort=False):
        rows = block.set_index("suite")
        names = _names(spec, dict(zip(keys, values, strict=True)), block["drafter"].iloc[0])
        for line, prefix in (("paper", "paper_"), ("ours", ""), ("ours - paper", "difference_")):
            lines[*names, line] = [_shown(rows.loc[suite], metric, prefix) for suite in suites for metric in METRICS]
    columns = pd.MultiIndex.from_product([[SUITE_NAMES.get(s, s) for s in suites], METRICS.values()])
    index = pd.MultiIndex.from_tuples(lines, names=[*keys.values(), ""])
    return pd.DataFrame(list(lines.values()), index=index, columns=columns)


def audit_columns(table: pd.DataFrame) -> pd.DataFrame:
    """The audit, one line per row of the table and suite, as text: block lengths against ceilings, intervals, sizes."""
    spec = TABLES[table.attrs["table"]]
    keys = spec.keys
    rows = table[table["suite"] != "average"]
    names = [
        _names(spec, cell, drafter)
        for cell, drafter in zip(rows[list(keys)].to_dict("records"), rows["drafter"], strict=True)
    ]
    number = {"SR": "speedup", "τ": "tau", "τ pooled": "tau_pooled", "1 + C_p": "ceiling"}
    shown = {
        **{heading: [name[i] for name in names] for i, heading in enumerate(keys.values())},
        "Suite": rows["suite"].map(lambda suite: SUITE_NAMES.get(suite, suite)),
        **{title: [_shown(row, name, "") for _, row in rows.iterrows()] for title, name in number.items()},
        "z": [_number(row.audit_z, "+.2f", row.status) for row in rows.itertuples()],
        "SR 95%": [_interval(row.speedup_low, row.speedup_high) for row in rows.itertuples()],
        "τ 95%": [_interval(row.tau_low, row.tau_high) for row in rows.itertuples()],
        "tokens/s": [_number(row.tokens_per_s, ".1f", row.status) for row in rows.itertuples()],
        "plain tokens/s": [_number(row.ar_tokens_per_s, ".1f", row.status) for row in rows.itertuples()],
        "prompts": [_number(row.prompts, ".0f", row.status) for row in rows.itertuples()],
        "rounds": [_number(row.rounds, ".0f", row.status) for row in rows.itertuples()],
    }
    return pd.DataFrame(shown).set_index([*keys.values(), "Suite"])


_NUMBERS = (
    "speedup", "tau", "tau_pooled", "ceiling", "audit_z", "speedup_low", "speedup_high", "tau_low", "tau_high",
    "tokens_per_s", "ar_tokens_per_s", "prompts", "rounds",
)  # fmt: skip


def _row(table: Table, outcome: dict) -> dict:
    cell, metrics = outcome["cell"], outcome.get("metrics") if outcome["status"] == "finished" else None
    row = {key: cell[key] for key in (*table.keys, "drafter")}
    row |= {"suite": Path(cell["suite"]).stem, "status": outcome["status"], "hash": outcome.get("hash")}
    if metrics is None:
        return row | dict.fromkeys(_NUMBERS)
    for name in ("speedup", "tau"):
        row[f"{name}_low"], row[f"{name}_high"] = metrics[f"{name}_ci95"] or (None, None)
    return row | {name: metrics[name] for name in _NUMBERS if name not in row}


def _average(keys: dict, block: pd.DataFrame) -> pd.DataFrame:
    """The unweighted mean over the suites of one row of the table; empty numbers unless all are finished."""
    states = list(block["status"])
    status = "finished" if set(states) == {"finished"} else "failed" if "failed" in states else "not run"
    row = keys | {"drafter": block["drafter"].iloc[0], "suite": "average"}
    row |= {"status": status, "hash": None} | dict.fromkeys(_NUMBERS)
    if status == "finished":
        row |= {name: block[name].mean() for name in ("speedup", "tau", "tau_pooled", "ceiling")}
    return pd.DataFrame([row])


def _refuse_mix(table: Table, outcomes: Sequence[dict]) -> None:
    refuse_mix(table.number, outcomes)
    for name in CELL_FIELDS:
        own = {"role", "builder", "verifier", "budget"} if table.methods else {"role"}
        if name not in table.keys and name not in own:
            one_value(table.number, name, [o["cell"][name] for o in outcomes])


def refuse_mix(number: str, outcomes: Sequence[dict]) -> None:
    """Raises `ValueError` for records of different schema, machine or target revision in table `number`."""
    records = [o for o in outcomes if o["status"] == "finished"]
    one_value(number, "schema_version", [r["schema_version"] for r in records])
    one_value(number, "machine", [f"{r['device']['name']}, threads: {r['device']['threads']}" for r in records])
    one_value(number, "target revision", [r["target"]["revision"] for r in records])


def one_value(number: str, name: str, values: list) -> None:
    """Raises `ValueError` where `values` of the field `name` differ between the cells of table `number`."""
    if len(found := sorted({str(value) for value in values})) > 1:
        raise ValueError(f"table {number} needs one {name} for all its cells, got {', '.join(found)}")


def machine_of(outcomes: Sequence[dict]) -> str:
    """What the finished cells ran on, as text."""
    records = [o for o in outcomes if o["status"] == "finished"]
    if not records:
        return "nothing run yet"
    device = records[0]["device"]
    return device["name"] + (f", {device['threads']} threads" if device["threads"] else "")


def _caption(table: Table, outcomes: Sequence[dict]) -> str:
    cell, machine = outcomes[0]["cell"], machine_of(outcomes)
    verifier = VERIFIER_NAMES.get(cell["verifier"], cell["verifier"])
    fixed = [f"target {cell['target']}"] if "target" not in table.keys else []
    fixed += [cell["dtype"]]
    fixed += [f"builder {cell['builder']}"] if not table.methods else []
    fixed += [f"B = {max(o['cell']['budget'] for o in outcomes)}"] if "budget" not in table.keys else []
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


def _names(table: Table, keys: dict, drafter: str) -> list[str]:
    """How a row of the table is called, one text per key."""
    shown = {
        "role": lambda role: table.roles.get(role, f"{role} ({Path(drafter).name})"),
        "verifier": lambda verifier: VERIFIER_NAMES.get(verifier, verifier),
        "temperature": lambda temperature: f"{temperature:g}",
        "target": lambda target: Path(target).name,
        "budget": str,
    }
    return [shown[key](value) for key, value in keys.items()]


def _shown(row: pd.Series, metric: str, prefix: str) -> str:
    if prefix == "paper_":
        return _number(row[f"paper_{metric}"], ".2f", DASH)
    if prefix == "difference_":
        return _number(row[f"difference_{metric}"], "+.2f", DASH)
    return _number(row[metric], ".2f", row["status"])


def _number(value: float, form: str, otherwise: str) -> str:
    """The number as text; `otherwise` where there is none ("finished" without a number: no round was decoded)."""
    return format(value, form) if pd.notna(value) else otherwise.replace("finished", "undefined")


def _interval(low: float, high: float) -> str:
    return f"{low:.2f}..{high:.2f}" if pd.notna(low) else DASH


def _drafter(role: str, drafter: str) -> str:
    return f"{role} ({Path(drafter).name})"


def _verifier(name: str) -> str:
    return VERIFIER_NAMES.get(name, name)
