"""The audit of a table of decoding: block lengths against their own ceilings, and every way to state a speed-up."""

import pandas as pd

from tevlib.report.files import DAGGER, DASH
from tevlib.report.layout import MARKED, is_marked, number, row_names
from tevlib.report.names import SUITE_NAMES
from tevlib.report.tables import TABLES


def audit_lengths(table: pd.DataFrame) -> pd.DataFrame:
    """Block lengths against ceilings, one line per row of the table and suite, as text.

    τ is the mean over responses of the response's mean, τ pooled the mean over rounds, 1 + C_p over the same rounds:
    for a saturated verifier the expectation of τ pooled, and steadier. z tells the two apart, in standard errors. The
    oracle's share is C_p over that of the best tree of as many nodes, on a sample of rounds; a dash in older records.
    """
    rows = _suites(table)
    sampled = rows["builder"] == "sampled_chain"
    shown = {
        "τ": _texts(rows, "tau", ".2f"),
        "τ 95%": _intervals(rows, "tau"),
        "τ pooled": _texts(rows, "tau_pooled", ".2f"),
        "τ pooled 95%": _intervals(rows, "tau_pooled"),
        "1 + C_p": _texts(rows, "ceiling", ".2f"),
        "1 + C_p 95%": _intervals(rows, "ceiling"),
        "z": [DASH if chain else text for chain, text in zip(sampled, _texts(rows, "audit_z", "+.2f"), strict=True)],
        "as predicted": [_as_predicted(z) for z in rows["audit_z"]],
        "oracle's share": [f"{share:.0%}" if pd.notna(share) else DASH for share in rows["oracle_share"]],
        "prompts": _texts(rows, "prompts", ".0f"),
        "rounds": _texts(rows, "rounds", ".0f"),
    }
    part = pd.DataFrame(shown, index=_index(table, rows))
    part.attrs["notes"] = [f"As predicted: τ pooled is what its own ceilings 1 + C_p predict, |z| ≤ {MARKED:g}."]
    if sampled.any():
        part.attrs["notes"].append(
            "The sampled chain has no z: its verifier also looks at the law that the chain was drawn from, so that "
            "1 + C_p, which takes the chain as given, is not its expectation."
        )
    return part


def audit_speed(table: pd.DataFrame) -> pd.DataFrame:
    """Speed-ups by every definition, one line per row of the table and suite, as text.

    SR divides total times by total tokens; SR of means is the ratio of mean seconds per token over responses, as the
    references' scripts have it; SR end to end has prefill and first token in it.
    """
    rows = _suites(table)
    shown = {
        "SR": _texts(rows, "speedup", ".2f"),
        "SR 95%": _intervals(rows, "speedup"),
        "SR of means": _texts(rows, "speedup_references", ".2f"),
        "SR end to end": _texts(rows, "speedup_end_to_end", ".2f"),
        "tokens/s": _texts(rows, "tokens_per_s", ".1f"),
        "plain tokens/s": _texts(rows, "ar_tokens_per_s", ".1f"),
        "prompts": _texts(rows, "prompts", ".0f"),
        "responses": _texts(rows, "responses", ".0f"),
    }
    return pd.DataFrame(shown, index=_index(table, rows))


def _suites(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["suite"] != "average"]


def _index(table: pd.DataFrame, rows: pd.DataFrame) -> pd.MultiIndex:
    spec = TABLES[table.attrs["table"]]
    names = []
    for row in rows.to_dict("records"):
        suite = SUITE_NAMES.get(row["suite"], row["suite"])
        names.append((*row_names(spec, {key: row[key] for key in spec.keys}, row["drafter"]), suite))
    return pd.MultiIndex.from_tuples(names, names=[*spec.keys.values(), "Suite"])


def _texts(rows: pd.DataFrame, name: str, form: str) -> list[str]:
    return [number(value, form, status) for value, status in zip(rows[name], rows["status"], strict=True)]


def _intervals(rows: pd.DataFrame, name: str) -> list[str]:
    ends = zip(rows[f"{name}_low"], rows[f"{name}_high"], strict=True)
    return [f"{low:.2f}..{high:.2f}" if pd.notna(low) else DASH for low, high in ends]


def _as_predicted(z: float) -> str:
    return DASH if pd.isna(z) else f"no {DAGGER}" if is_marked(z) else "yes"
