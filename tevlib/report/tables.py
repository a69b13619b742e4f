"""Records -> Table 4, with the paper's numbers beside ours. Reads records only; no model, no torch."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tevlib.report.paper import VERIFIERS, table4_value

SUITE_NAMES = {
    "mt_bench": "MT-Bench",
    "humaneval": "HumanEval",
    "gsm8k": "GSM8K",
    "math500": "MATH-500",
    "average": "Average",
}
METRICS = {"speedup": "SR", "tau": "τ"}
VERIFIER_NAMES = VERIFIERS | {"sequential_residual": "Sequential residual", "greedy": "Greedy"}
HELD_FIXED = (
    "profile", "target", "builder", "budget", "temperature", "top_p", "top_k", "max_new_tokens", "dtype", "seed",
)  # fmt: skip
DASH = "—"


def table4(outcomes: Sequence[dict]) -> pd.DataFrame:
    """One row per drafter, verifier and suite, `average` included: ours, the paper's, their difference, the audit.

    outcomes: what `tevlib.suite.records.outcome` gives for every planned cell. `status` is finished, failed or not
    run; the average (unweighted, as in the paper) is only there when all its suites are. `attrs["caption"]` says what
    was measured and where.

    Raises `ValueError` for no cells, and for a mix: cells that differ in more than drafter, verifier and suite, or
    records of different schema, machine or target revision.
    """
    if not outcomes:
        raise ValueError("table 4 needs at least one cell")
    _refuse_mix(outcomes)
    frame = pd.DataFrame([_row(outcome) for outcome in outcomes])
    if frame.duplicated(["role", "verifier", "suite"]).any():
        raise ValueError("table 4 got two cells for the same drafter, verifier and suite")
    blocks = []
    for (role, verifier), block in frame.groupby(["role", "verifier"], sort=False):
        blocks += [block, _average(role, verifier, block)]
    frame = pd.concat(blocks, ignore_index=True).astype({name: float for name in _NUMBERS})
    for metric in METRICS:
        keys = zip(frame["role"], frame["verifier"], frame["suite"], strict=True)
        frame[f"paper_{metric}"] = pd.Series([table4_value(*key, metric) for key in keys], dtype=float)
        frame[f"difference_{metric}"] = frame[metric] - frame[f"paper_{metric}"]
    frame.attrs["caption"] = _caption(outcomes)
    return frame


def layout(table: pd.DataFrame) -> pd.DataFrame:
    """The printed form: lines paper / ours / difference per drafter and verifier, SR and τ per suite, as text."""
    suites = list(dict.fromkeys(table["suite"]))
    lines = {}
    for (role, verifier), block in table.groupby(["role", "verifier"], sort=False):
        rows = block.set_index("suite")
        for line, prefix in (("paper", "paper_"), ("ours", ""), ("ours - paper", "difference_")):
            lines[_drafter(role, block["drafter"].iloc[0]), _verifier(verifier), line] = [
                _shown(rows.loc[suite], metric, prefix) for suite in suites for metric in METRICS
            ]
    columns = pd.MultiIndex.from_product([[SUITE_NAMES.get(s, s) for s in suites], METRICS.values()])
    index = pd.MultiIndex.from_tuples(lines, names=["Drafter", "Verifier", ""])
    return pd.DataFrame(list(lines.values()), index=index, columns=columns)


def audit_columns(table: pd.DataFrame) -> pd.DataFrame:
    """The audit, one row per drafter, verifier and suite, as text: block lengths against ceilings, intervals, sizes."""
    rows = table[table["suite"] != "average"]
    number = {"SR": "speedup", "τ": "tau", "τ pooled": "tau_pooled", "1 + C_p": "ceiling"}
    shown = {
        "Drafter": [_drafter(row.role, row.drafter) for row in rows.itertuples()],
        "Verifier": rows["verifier"].map(_verifier),
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
    return pd.DataFrame(shown).set_index(["Drafter", "Verifier", "Suite"])


def write_table(table: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    """Paths of `<name>.csv` (every number), `.md`, `.html` and `.tex` (printed form and audit) in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"{name}.{kind}" for kind in ("csv", "md", "html", "tex")}
    caption, parts = table.attrs["caption"], (layout(table), audit_columns(table))
    table.to_csv(paths["csv"], index=False, float_format="%.6g")
    paths["md"].write_text(f"{caption}\n\n" + "\n\n".join(map(markdown, parts)) + "\n", encoding="utf-8")
    styles = [part.style.set_caption(caption if i == 0 else "Audit") for i, part in enumerate(parts)]
    head = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Table 4</title></head><body>\n'
    body = "\n".join(style.set_uuid(f"{name}-{i}").to_html() for i, style in enumerate(styles))
    paths["html"].write_text(f"{head}{body}\n</body></html>\n", encoding="utf-8")
    paths["tex"].write_text(
        "\n".join(style.to_latex(hrules=True, convert_css=True) for style in _for_latex(parts, caption)), "utf-8"
    )
    return list(paths.values())


def markdown(part: pd.DataFrame) -> str:
    """A printed form as a Markdown table with plain column names; it reads well in a terminal too."""
    flat = part.copy()
    flat.columns = [" ".join(c) if isinstance(c, tuple) else c for c in part.columns]
    return flat.reset_index().to_markdown(index=False, disable_numparse=True, stralign="right")


_NUMBERS = (
    "speedup", "tau", "tau_pooled", "ceiling", "audit_z", "speedup_low", "speedup_high", "tau_low", "tau_high",
    "tokens_per_s", "ar_tokens_per_s", "prompts", "rounds",
)  # fmt: skip


def _row(outcome: dict) -> dict:
    cell, metrics = outcome["cell"], outcome.get("metrics") if outcome["status"] == "finished" else None
    row = {key: cell[key] for key in ("role", "verifier", "drafter")}
    row |= {"suite": Path(cell["suite"]).stem, "status": outcome["status"], "hash": outcome.get("hash")}
    if metrics is None:
        return row | dict.fromkeys(_NUMBERS)
    for name in ("speedup", "tau"):
        row[f"{name}_low"], row[f"{name}_high"] = metrics[f"{name}_ci95"] or (None, None)
    return row | {name: metrics[name] for name in _NUMBERS if name not in row}


def _average(role: str, verifier: str, block: pd.DataFrame) -> pd.DataFrame:
    """The unweighted mean over the suites of one drafter and verifier; empty numbers unless all are finished."""
    states = list(block["status"])
    status = "finished" if set(states) == {"finished"} else "failed" if "failed" in states else "not run"
    row = {"role": role, "verifier": verifier, "drafter": block["drafter"].iloc[0], "suite": "average"}
    row |= {"status": status, "hash": None} | dict.fromkeys(_NUMBERS)
    if status == "finished":
        row |= {name: block[name].mean() for name in ("speedup", "tau", "tau_pooled", "ceiling")}
    return pd.DataFrame([row])


def _refuse_mix(outcomes: Sequence[dict]) -> None:
    for name in HELD_FIXED:
        _one_value(name, [o["cell"][name] for o in outcomes])
    records = [o for o in outcomes if o["status"] == "finished"]
    _one_value("schema_version", [r["schema_version"] for r in records])
    _one_value("machine", [f"{r['device']['name']}, threads: {r['device']['threads']}" for r in records])
    _one_value("target revision", [r["target"]["revision"] for r in records])


def _one_value(name: str, values: list) -> None:
    if len(found := sorted({str(value) for value in values})) > 1:
        raise ValueError(f"table 4 needs one {name} for all its cells, got {', '.join(found)}")


def _caption(outcomes: Sequence[dict]) -> str:
    cell, records = outcomes[0]["cell"], [o for o in outcomes if o["status"] == "finished"]
    machine = "nothing run yet"
    if records:
        device = records[0]["device"]
        machine = device["name"] + (f", {device['threads']} threads" if device["threads"] else "")
    text = (
        f"Table 4, profile {cell['profile']}: target {cell['target']} in {cell['dtype']}, builder {cell['builder']}, "
        f"B = {cell['budget']}, T = {cell['temperature']:g}, at most {cell['max_new_tokens']} new tokens; {machine}. "
        "SR: autoregressive over speculative seconds per token; τ: mean block length, bonus included."
    )
    if cell["profile"] != "paper":
        text += (
            " The paper's rows (original: released DFlash, exit: exit-trained) are Qwen3-4B with B = 64 on an H20: "
            "compare our rows with each other, not with those."
        )
    return text


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


def _for_latex(parts: Sequence[pd.DataFrame], caption: str) -> list:
    """Stylers whose text LaTeX takes: the two Greek and mathematical headings in math mode, the rest escaped."""
    math = {
        "τ": r"$\tau$",
        "1 + C_p": "$1 + C_p$",
        "τ pooled": r"$\tau$ pooled",
        "τ 95%": r"$\tau$ 95\%",
        "SR 95%": r"SR 95\%",
    }
    styles = []
    for i, part in enumerate(parts):
        renamed = part.rename(columns=math).replace({DASH: "---"})
        text = caption.replace("τ", r"$\tau$").replace("_", r"\_").replace("&", r"\&").replace("%", r"\%")
        styles.append(renamed.style.set_caption(text if i == 0 else "Audit"))
    return styles
