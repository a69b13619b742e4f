"""Every figure by its name: what it is drawn from and what it says; nothing is drawn from nothing."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tevlib.report.figures import measured, recorded, rows
from tevlib.report.figures.cells import NotMeasured
from tevlib.report.figures.rounds import mean_change
from tevlib.report.figures.style import save_figure
from tevlib.report.tables import machine_of


@dataclass(frozen=True)
class Figure:
    """A figure: its title and caption, the tables whose records it wants (none: a recording), its drawing."""

    title: str
    caption: str
    tables: tuple[str, ...]
    draw: Callable


@dataclass(frozen=True)
class Drawn:
    """A figure of a report: its files, or (`paths` None) why there is none and the command that would change that."""

    name: str
    title: str
    caption: str
    paths: dict[str, Path] | None = None
    why: str = ""
    command: str = ""


FIGURES = {
    "figure1": Figure(
        "Figure 1: where a tree loses target mass, and two ways to use that",
        "Drawn from recorded rounds of SmolLM2-135M-Instruct at T = 0.6. (a) gsm8k/1101, first round: the shipped "
        "drafter's best 8 draft tokens, P(v) in the boxes, candidates that it omitted dashed. "
        "(b) humaneval/146, first round: what each verifier draws or tests on one fixed tree; all have the "
        "exit law w and the mean block 1 + C_p. (c) The context of (a) with the exit-trained drafter's tree: green is "
        "new, dashed is gone. The round was chosen to be readable; over all {count} recorded rounds the mean C_p of 8 "
        "tokens goes from {before:.2f} to {after:.2f}.",
        (),
        recorded.three_contributions,
    ),
    "figure2": Figure(
        "Figure 2: a fixed tree",
        "A recorded round (humaneval/146, the first; T = 0.6): the shipped drafter's best 9 draft tokens with P(v), "
        "the local exit probability ρ(v) and the exit mass w(v) = P(v) ρ(v) at every node. Σ w(v) = 1 (Lemma 1).",
        (),
        recorded.fixed_tree,
    ),
    "methods": Figure(
        "Table 1: methods",
        "Means over the suites with 95% intervals from drawing the prompts again; the tick is the mean ceiling 1 + C_p "
        "of the method's own trees.",
        ("table1",),
        rows.methods,
    ),
    "objectives": Figure(
        "Table 2: training objectives",
        "Means over the suites with 95% intervals from drawing the prompts again; the tick is the mean ceiling 1 + C_p "
        "of the drafter's trees.",
        ("table2",),
        rows.objectives,
    ),
    "budgets": Figure(
        "Table 5: block length and speed against the budget",
        "Means over the suites with 95% intervals from drawing the prompts again. A larger tree covers more and costs "
        "more to verify; dashed: plain decoding.",
        ("table5",),
        rows.budgets,
    ),
    "exits": Figure(
        "Where the mass leaves, before and after ExitTrain",
        "The exit law w summed by depth, mean over rounds, then over suites. Bars of one colour sum to 1, and their "
        "mean depth is C_p (Eq. 6): what moves to the right is accepted.",
        ("table2", "table5"),
        measured.exits,
    ),
    "oracle": Figure(
        "How much of the oracle's coverage a drafter reaches",
        "The oracle tree is the best tree of as many nodes under the target itself, on the same contexts: Σ C_p of the "
        "drafter's trees over Σ C_p of the oracle's on sampled rounds.",
        ("table2", "table1"),
        measured.oracle,
    ),
    "stages": Figure(
        "What a round is spent on",
        "Mean milliseconds of a draft-verify round by stage, over the suites; verify is the target's pass over the "
        "tree, decide and commit are what Table 3 times.",
        ("table1", "table4", "table5"),
        measured.stages,
    ),
    "latency": Figure(
        "Table 3: verifier latency against the budget",
        "Decision and cache commit on the same replayed rounds, means over the suites; below, what TEV saves against "
        "predraw, ours and the paper's.",
        ("table3",),
        measured.latency,
    ),
    "audit": Figure(
        "The audit: block lengths against their own ceilings",
        "Every decode cell once, sampled chains apart. Left: mean block length over mean ceiling. Right: the "
        "difference in standard errors, sorted, over standard normal quantiles; the band is |z| ≤ 3. At T = 0 both are "
        "equal. Cells share prompts and seeds, so their z move together.",
        ("table1", "table2", "table4", "table5"),
        measured.audit,
    ),
}  # fmt: skip


def draw_figures(outcomes: Sequence[Mapping], profile: str, folder: Path) -> list[Drawn]:
    """All of `FIGURES`, saved in `folder` from the outcomes of a profile's cells, or with the reason why not.

    profile: as the command line calls it, for the command that would fill a gap.
    """
    return [draw_figure(name, outcomes, profile, folder) for name in FIGURES]


def draw_figure(name: str, outcomes: Sequence[Mapping], profile: str, folder: Path) -> Drawn:
    """One figure, drawn and saved; see `draw_figures`. `KeyError` for a name that is none of `FIGURES`."""
    spec = FIGURES[name]
    wanted = [o for o in outcomes if not spec.tables or o["cell"]["table"] in spec.tables]
    planned = [table for table in spec.tables if any(o["cell"]["table"] == table for o in wanted)]
    try:
        if spec.tables and not planned:
            raise NotMeasured(f"profile {profile} plans none of {', '.join(spec.tables)}")
        figure, sources = spec.draw(wanted)
    except (NotMeasured, ValueError) as reason:  # a table refuses records that do not go together
        command = run_command(profile, planned) if planned else run_command("laptop", spec.tables)  # which has them all
        return Drawn(name, spec.title, spec.caption, why=str(reason), command=command)
    caption = spec.caption
    if name == "figure1":
        before, after, count = mean_change()
        caption = caption.format(before=before, after=after, count=count)
    if spec.tables:
        caption += f" Profile {wanted[0]['cell']['profile']}; {machine_of(wanted)}; {len(sources)} records."
    return Drawn(name, spec.title, caption, save_figure(figure, name, folder, caption, sources))


def run_command(profile: str, tables: Sequence[str]) -> str:
    """The command that runs what is missing of `tables` ("table1", ...) of a profile."""
    numbers = " ".join(table.removeprefix("table") for table in tables)
    return f"python -m tevlib run --profile {shlex.quote(profile)} --tables {numbers}"
