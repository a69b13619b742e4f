"""A rehearsal from end to end: the stage, the runs, the page of tables and figures, and what it says in a few lines."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tevlib.report.build import build_table
from tevlib.report.page import write_report
from tevlib.suite.profile import load_profile
from tevlib.suite.records import outcome
from tevlib.suite.rehearsal import Outcome, rehearse, set_stage


def perform(
    profile: str, tables: Sequence[str] | None = None, tokenizers: Path | None = None
) -> tuple[Outcome, list[str]]:
    """What came of rehearsing a profile (its name or file), of `tables` only if given, and that as lines of text."""
    stage = set_stage(profile, tokenizers, tables)
    found = rehearse(stage, tables)
    with stage.set():
        counts = verdict_counts(str(stage.profile), tables)
        report = write_report(str(stage.profile))
    lines = [f"{name}: {', '.join(f'{n} {word}' for word, n in one.items())}" for name, one in counts.items()]
    return found, [str(found), *lines, str(report)]


def verdict_counts(profile: str, tables: Sequence[str] | None = None) -> dict[str, Counter]:
    """How many numbers of each table (averages included) have which verdict, from the records that there are."""
    by_table: dict[str, list[dict]] = {}
    for cell in load_profile(profile, tables):
        by_table.setdefault(cell.table, []).append(outcome(cell))
    counts = {}
    for name, outcomes in by_table.items():
        frame = build_table(name, outcomes)
        counts[name] = Counter(frame[[column for column in frame if column.startswith("verdict_")]].stack())
    return counts
