"""Table 2 averaged over the suites, every objective against one of them on the same prompts. Reads records only."""

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tevlib.report.files import DASH
from tevlib.report.names import OBJECTIVE_NAMES
from tevlib.report.paper import paper_value

RESAMPLES = 2000
METRICS = {"tau": "τ", "ceiling": "1 + C_p", "speedup": "SR"}
KEYS = ["temperature", "role"]


def objective_averages(outcomes: Sequence[dict], reference: str = "original") -> pd.DataFrame:
    """One row per temperature, objective and metric: the mean over the suites, and its change against `reference`.

    outcomes: what `tevlib.suite.records.outcome` gives for the cells of Table 2. Columns: `value` (unweighted mean over
    the suites) and `change` (as a fraction of the reference's value), each with the ends `_low` and `_high` of a 95%
    bootstrap interval, and the paper's `paper_change`. `ceiling` is averaged as tau is: the mean over answers of each
    answer's mean 1 + C_p. Prompts are drawn again within each suite, the same ones for every objective, so that a
    change is judged by its differences prompt by prompt; as draws from n prompts spread too little by a factor of
    sqrt(1 - 1/n), deviations are scaled by its inverse. No interval with a suite of one prompt. Objectives that are not
    finished in all suites are left out; without the reference there are no changes. Raises `ValueError` where the cells
    of a suite and temperature have other prompts.
    """
    rows = pd.DataFrame([{key: o["cell"][key] for key in KEYS} for o in outcomes]).drop_duplicates()
    samples = {}
    for temperature, role in rows.itertuples(index=False):
        cells = [o for o in outcomes if (o["cell"]["temperature"], o["cell"]["role"]) == (temperature, role)]
        if all(o["status"] == "finished" for o in cells):
            samples[temperature, role] = _averages(cells)
    _check_same_prompts(outcomes)
    found = []
    for (temperature, role), averages in samples.items():
        for metric, values in averages.items():
            row = {"temperature": temperature, "role": role, "metric": metric, **_interval("value", values)}
            base = samples.get((temperature, reference), {}).get(metric)
            changes = np.full(1 + RESAMPLES, np.nan) if base is None else values / base - 1
            row |= _interval("change", changes)
            row["paper_change"] = _paper_change(temperature, role, reference, metric)
            found.append(row)
    columns = [*KEYS, "metric", "value", "value_low", "value_high", "change", "change_low", "change_high"]
    return pd.DataFrame(found, columns=[*columns, "paper_change"])


def averages_layout(averages: pd.DataFrame) -> pd.DataFrame:
    """The printed form of `objective_averages`: one line per temperature and objective, intervals in brackets."""
    lines = {}
    for (temperature, role), block in averages.groupby(KEYS, sort=False):
        of = block.set_index("metric")
        line = {}
        for metric, name in METRICS.items():
            row = of.loc[metric]
            line[name] = _shown(row["value"], ".2f", row["value_low"], row["value_high"])
            line[f"{name} change"] = _shown(row["change"], "+.1%", row["change_low"], row["change_high"])
            if metric != "ceiling":
                line[f"{name} change, paper"] = _shown(row["paper_change"], "+.1%")
        lines[f"{temperature:g}", OBJECTIVE_NAMES.get(role, role)] = line
    index = pd.MultiIndex.from_tuples(lines, names=["T", "Objective"]) if lines else pd.Index([], name="Objective")
    return pd.DataFrame(list(lines.values()), index=index)


def _averages(cells: list[dict]) -> dict[str, np.ndarray]:
    """Per metric the mean over the suites `[1 + RESAMPLES]`: as measured, then with the prompts drawn again."""
    suites = []
    for outcome in cells:
        sums = _sums_by_prompt(outcome["responses"])
        prompts = len(sums["answers"])
        generator = np.random.default_rng(zlib.crc32(outcome["cell"]["suite"].encode()))  # a suite's draws: one for all
        again = generator.integers(prompts, size=(RESAMPLES, prompts))
        draws = np.concatenate([np.arange(prompts)[None], again])
        with np.errstate(divide="ignore", invalid="ignore"):  # a draw of prompts without a round has no tau
            drawn = _metrics({name: values[draws].sum(1) for name, values in sums.items()})
            suites.append({name: _spread(values, prompts) for name, values in drawn.items()})
    return {metric: np.mean([suite[metric] for suite in suites], axis=0) for metric in METRICS}


def _spread(values: np.ndarray, prompts: int) -> np.ndarray:
    """`values` with their deviations from the first made as wide as those of `prompts` independent prompts."""
    factor = np.sqrt(prompts / (prompts - 1)) if prompts > 1 else np.nan
    return np.concatenate([values[:1], values[0] + (values[1:] - values[0]) * factor])


def _sums_by_prompt(responses: Sequence[dict]) -> dict[str, np.ndarray]:
    """What the metrics are ratios of, summed over each prompt's answers; prompts sorted by id."""
    rows = pd.DataFrame([
        {
            "id": row["id"],
            "tau": row["lengths"] / row["rounds"] if row["rounds"] else 0.0,
            "answers": float(row["rounds"] > 0),
            "ceiling": row["ceilings"] / row["rounds"] if row["rounds"] else 0.0,
            "ar_s": row["ar_s"],
            "ar_timed": max(row["ar_tokens"] - 1, 0),
            "spec_s": row["spec_s"],
            "timed": max(row["tokens"] - 1, 0),
        }
        for row in responses
    ])  # fmt: skip
    return {name: column.to_numpy(float) for name, column in rows.groupby("id").sum().items()}


def _metrics(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`tau` and `speedup` as in `tevlib.suite.metrics`, and the ceiling of that tau, from sums over prompts."""
    return {
        "tau": sums["tau"] / sums["answers"],
        "ceiling": sums["ceiling"] / sums["answers"],
        "speedup": (sums["ar_s"] / sums["ar_timed"]) / (sums["spec_s"] / sums["timed"]),
    }


def _check_same_prompts(outcomes: Sequence[dict]) -> None:
    prompts: dict[tuple[float, str], set[str]] = {}
    for outcome in outcomes:
        if outcome["status"] == "finished":
            cell, ids = outcome["cell"], {row["id"] for row in outcome["responses"]}
            if prompts.setdefault((cell["temperature"], cell["suite"]), ids) != ids:
                where = f"{Path(cell['suite']).stem} at T = {cell['temperature']:g}"
                raise ValueError(f"objectives are compared on the same prompts, those of {where} differ between cells")


def _interval(name: str, values: np.ndarray) -> dict[str, float]:
    """The measured value (the first) and the ends of the 95% interval of the others; NaN where there are none."""
    known = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
    return {name: float(values[0]), f"{name}_low": float(low), f"{name}_high": float(high)}


def _paper_change(temperature: float, role: str, reference: str, metric: str) -> float:
    """The paper's average of this row over that of the reference, minus 1; NaN where it has not both."""
    if metric == "ceiling":
        return np.nan
    cells = [{"temperature": temperature, "role": one} for one in (role, reference)]
    ours, base = (paper_value("table2", cell, "average", metric) for cell in cells)
    return np.nan if ours is None or base is None else ours / base - 1


def _shown(value: float, form: str, low: float = np.nan, high: float = np.nan) -> str:
    """The number and its interval as text; what rounding errors make of 0 is 0."""
    if pd.isna(value):
        return DASH
    value, low, high = (round(number, 9) + 0.0 for number in (value, low, high))
    return f"{value:{form}}" + ("" if pd.isna(low) else f" ({low:{form}}..{high:{form}})")
