"""About how long a company of cells takes: from finished records where there are any, else by a rough rule.

Answers are counted exactly; what one takes is not known before. From records of the same target and number format on a
machine of the same name: their seconds per token and their lengths. Otherwise by rule: a pass reads the active weights
once and has a least time, a speculative answer takes a fixed share of the plain one, and an answer has 500 tokens, or
the most that it may have. The rule may be wrong by a factor of three either way; whoever prints it says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tevlib.sources.prompts import load_prompts
from tevlib.sources.suites import ROWS
from tevlib.suite.cells import Cell, VerifierCell, Work
from tevlib.suite.paths import from_repository
from tevlib.suite.sizes import BYTES, parameters

START_S = 20.0  # kernel, imports, loading
UNKNOWN_PARAMETERS = 8e9
ANSWER_TOKENS = 500


@dataclass(frozen=True)
class Machine:
    """What the rule knows of a machine: bytes of weights read in a second, least seconds of a pass, and the share of
    plain decoding's time that a speculative answer takes."""

    name: str
    bytes_per_s: float
    pass_s: float
    share: float


GPU = Machine("one data-centre GPU", 1.5e12, 0.025, 0.25)
CPU = Machine("two CPU cores", 1e10, 0.03, 0.8)


@dataclass(frozen=True)
class Rate:
    """Seconds per token of plain and of speculative decoding, prefill included, and how many of the most tokens that
    an answer may have it has on average."""

    plain_s: float
    speculative_s: float
    share: float


def answers(cell: Work) -> int:
    """How many answers a cell decodes: turns of its prompts, once per repeat."""
    if cell.suite in ROWS:
        turns = (cell.prompts or ROWS[cell.suite]) * (2 if cell.suite == "mt_bench" else 1)
    else:
        turns = sum(len(p.turns) for p in load_prompts(from_repository(cell.suite), cell.prompts))
    return turns * (cell.repeats if isinstance(cell, Cell) else 1)


def rates(records: Iterable[dict], machine: str) -> dict[tuple[str, str], Rate]:
    """The rate by (target, dtype), from decode records of a machine of that name."""
    rows: dict[tuple[str, str], list[dict]] = {}
    for record in records:
        cell = record["cell"]
        if "verifier" in cell and record["device"]["name"] == machine:
            new = cell["max_new_tokens"]
            done = [row | {"most": new} for row in record["responses"] if row["status"] == "ok"]
            rows.setdefault((cell["target"], cell["dtype"]), []).extend(done)
    return {
        kind: Rate(
            plain_s=sum(row["ar_s"] + row["ar_prefill_s"] for row in some) / sum(row["ar_tokens"] for row in some),
            speculative_s=sum(row["spec_s"] + row["prefill_s"] for row in some) / sum(row["tokens"] for row in some),
            share=fmean(row["ar_tokens"] / row["most"] for row in some),
        )
        for kind, some in rows.items()
        if some
    }


def by_rule(cell: Work, machine: Machine) -> Rate:
    """The rough rule's rate for the cell's target on `machine`."""
    _, active = parameters(cell.target, cell.dtype) or (UNKNOWN_PARAMETERS, UNKNOWN_PARAMETERS)
    plain = max(machine.pass_s, BYTES[cell.dtype] * active / machine.bytes_per_s)
    return Rate(plain, machine.share * plain, min(1.0, ANSWER_TOKENS / cell.max_new_tokens))


def seconds(company: Sequence[Work], rate: Rate) -> float:
    """About how long cells of one company take together: one plain decoding, one speculative one for each cell.

    A latency cell's decoding is counted, with as much again for the timing.
    """
    first = company[0]
    tokens = answers(first) * first.max_new_tokens * rate.share
    if isinstance(first, VerifierCell):
        return START_S + 2 * tokens * rate.speculative_s * len({(cell.budget, cell.temperature) for cell in company})
    return START_S + tokens * (rate.plain_s + rate.speculative_s * len(company))
