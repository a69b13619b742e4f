"""Figures from records that the paper has no table for: exits by depth, oracle, stages, latency, the audit.

Each function takes outcomes (`tevlib.suite.records.outcome`) and returns a matplotlib figure and the hashes of the
records it shows; `NotMeasured` where there are none. A row of a figure is a mean over suites, without weights, and is
there only when all its suites are finished.
"""

from collections.abc import Mapping, Sequence
from statistics import NormalDist

from tevlib.report.figures.cells import NotMeasured, grid, hashes, mean, mean_by_depth, numbered, of_table, plain, whole
from tevlib.report.figures.style import (
    BLUE,
    GREY,
    INK,
    MARKERS,
    MUTED,
    STAGES,
    VERIFIERS,
    VERMILION,
    colour_of,
    styled,
)  # fmt: skip
from tevlib.report.latency import TEV_FORMS, latency_table
from tevlib.report.layout import is_marked
from tevlib.report.names import METHOD_NAMES, OBJECTIVE_NAMES, SHAPE_NAMES, VERIFIER_NAMES
from tevlib.suite.cells import AUTO

BEFORE_AFTER = (("table2", "original", "exit"), ("table5", "ddtree", "exit"), ("table1", "ddtree", "exit"))


@styled
def exits(outcomes: Sequence[Mapping]):
    """Where target mass leaves the tree, by depth, before and after ExitTrain; C_p is the mean depth of the exit."""
    for table, before, after in BEFORE_AFTER:
        cells = [o for o in numbered(of_table(outcomes, table)) if o["cell"]["role"] in (before, after)]
        largest = max((o["cell"]["budget"] for o in cells), default=0)
        groups = whole([o for o in cells if o["cell"]["budget"] == largest], ("temperature", "role"), "exits")
        pairs = [t for t in sorted({t for t, _ in groups}) if (t, before) in groups and (t, after) in groups]
        if pairs:
            break
    else:
        raise NotMeasured("no drafter's exits are recorded both before and after ExitTrain (Tables 1, 2 and 5)")
    figure, axes = grid(1, len(pairs), (5.9 * len(pairs), 4.1), sharey=True)
    shown = {}
    for axis, temperature in zip(axes[0], pairs, strict=True):
        for place, (role, name) in enumerate(((before, "before"), (after, "after ExitTrain"))):
            group = shown[temperature, role] = groups[temperature, role]
            w = mean_by_depth([o["metrics"]["exits"] for o in group])
            covered = sum(depth * mass for depth, mass in enumerate(w))
            x = [depth + 0.42 * (place - 0.5) for depth in range(len(w))]
            label = f"{name}: C_p = {covered:.2f}"
            axis.bar(x, w, 0.4, color=colour_of(role), label=label, edgecolor="white", hatch="" if place else "//")
        axis.set_title(f"T = {temperature:g}, B = {largest}")
        axis.set_xlabel("depth at which the target leaves the tree")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(False, axis="x")
        axis.legend()
    axes[0][0].set_ylabel("exit mass, mean over rounds")
    return figure, hashes(shown)


@styled
def oracle(outcomes: Sequence[Mapping]):
    """The share of the oracle tree's coverage that each drafter's trees reach, suite by suite and on average."""
    for table in ("table2", "table1"):
        cells, names = numbered(of_table(outcomes, table)), OBJECTIVE_NAMES if table == "table2" else METHOD_NAMES
        largest = max((o["cell"]["budget"] for o in cells), default=0)
        cells = [o for o in cells if o["cell"]["budget"] == largest]
        groups = whole(cells, ("temperature", "role"), "oracle_share")
        if groups:
            break
    else:
        raise NotMeasured("no record holds the oracle's coverage")
    temperatures = sorted({t for t, _ in groups})
    roles = list(dict.fromkeys(role for _, role in groups))[::-1]
    figure, axes = grid(1, len(temperatures), (5.8 * len(temperatures) + 1, 1.5 + 0.5 * len(roles)), sharey=True)
    for axis, temperature in zip(axes[0], temperatures, strict=True):
        for place, role in enumerate(roles):
            if not (group := groups.get((temperature, role))):
                continue
            shares = [100 * o["metrics"]["oracle_share"] for o in group]
            average = mean(shares)
            axis.barh(place, average, 0.62, color=colour_of(role), alpha=0.85)
            axis.plot(shares, [place] * len(shares), "o", color=INK, markersize=4, markerfacecolor="white")
            axis.annotate(f"{average:.0f}%", (max(shares), place), (7, 0), textcoords="offset points", va="center")
        axis.set_title(f"T = {temperature:g}, B = {largest}")
        axis.set_xlim(0, 100)
        axis.set_xlabel("share of the oracle's C_p (%); dots: suites")
        axis.grid(False, axis="y")
    axes[0][0].set_yticks(range(len(roles)), [plain(names.get(role, role)) for role in roles])
    return figure, hashes(groups)


@styled
def stages(outcomes: Sequence[Mapping]):
    """Milliseconds of a round by stage, for every method and budget of Tables 1, 4 and 5 at one temperature."""
    temperature = max((o["cell"]["temperature"] for o in outcomes), default=0.0)
    found: dict[tuple[str, int], list[Mapping]] = {}
    for tables in (("table5", "table1"), ("table4",)):  # crossed verifiers only where there are no methods
        cells = [o for o in outcomes if o["cell"]["table"] in tables and o["cell"]["temperature"] == temperature]
        groups = whole(cells, ("table", "role", "verifier", "budget"), "tau_pooled")  # None: not a round
        for (_, role, verifier, budget), group in groups.items():
            name = METHOD_NAMES.get(role, role) if "table4" not in tables else f"{role} + {VERIFIER_NAMES[verifier]}"
            found.setdefault((plain(name), budget), group)  # Table 1's budget is one of Table 5's: the same records
        if found:
            break
    else:
        raise NotMeasured("no method of Tables 1, 4 or 5 is finished in all suites")
    bars = sorted(found, key=lambda bar: (bar[1] == AUTO, bar[1], list(found).index(bar)))[::-1]
    figure, axes = grid(1, 1, (10.5, 1.6 + 0.42 * len(bars)))
    axis, left = axes[0][0], [0.0] * len(bars)
    for stage, colour in STAGES.items():
        ms = [mean(o["metrics"]["stage_ms"].get(stage, 0.0) for o in found[bar]) for bar in bars]
        axis.barh(range(len(bars)), ms, 0.68, left=left, color=colour, label=stage, edgecolor="white", linewidth=0.6)
        left = [a + b for a, b in zip(left, ms, strict=True)]
    for place, (bar, total) in enumerate(zip(bars, left, strict=True)):
        tau = mean(o["metrics"]["tau_pooled"] for o in found[bar])
        text = f"{total:.0f} ms, {total / tau:.0f} a token"
        axis.annotate(text, (total, place), (6, 0), textcoords="offset points", va="center", fontsize=11)
    rates = [o["metrics"]["ar_tokens_per_s"] for group in found.values() for o in group]
    if rates := [rate for rate in rates if rate]:
        token = 1000 / mean(rates)
        label = f"plain decoding, one token: {token:.0f} ms"
        axis.axvline(token, color=INK, linewidth=1.4, linestyle=(0, (4, 2)), label=label)
    axis.set_yticks(range(len(bars)), [f"{name}, B = {budget}" for name, budget in bars])
    axis.set_xlabel(f"milliseconds of a draft-verify round, T = {temperature:g}")
    axis.set_xlim(0, 1.28 * max(left))
    axis.set_ylim(-0.6, len(bars) - 0.4)
    axis.grid(False, axis="y")
    axis.legend(
        loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=6, columnspacing=1.2, handlelength=1.2, fontsize=11
    )
    return figure, hashes(found)


@styled
def latency(outcomes: Sequence[Mapping]):
    """Table 3 as lines: milliseconds of decision and commit against the budget, TEV's reductions beside the paper's."""
    cells = of_table(outcomes, "table3")
    if not any(o["status"] == "finished" for o in cells):
        raise NotMeasured("no latency cell of Table 3 is finished")
    table = latency_table(cells)
    averages = table[(table["suite"] == "average") & (table["status"] == "finished")]
    if averages.empty:
        raise NotMeasured("no row of Table 3 is finished in all suites")
    panels = list(averages.groupby(["shape", "temperature"], sort=False))
    figure, axes = grid(2, len(panels), (3.2 * len(panels) + 0.8, 6.2), sharex=True, height_ratios=(3, 2))
    for column, ((shape, temperature), rows) in enumerate(panels):
        above, below = axes[0][column], axes[1][column]
        sizes = sorted(rows["budget"].unique())
        for verifier, line in rows.sort_values("budget").groupby("verifier", sort=False):
            above.plot(line["budget"], line["ms"], marker=MARKERS[verifier], color=VERIFIERS[verifier],
                       label=VERIFIER_NAMES[verifier])  # fmt: skip
        for form in TEV_FORMS:
            tev = rows[rows["verifier"] == form].sort_values("budget")
            below.plot(tev["budget"], tev["reduction"], marker=MARKERS[form], color=VERIFIERS[form],
                       label=VERIFIER_NAMES[form])  # fmt: skip
        tev = rows[rows["verifier"] == "tev_parallel"].sort_values("budget")
        below.plot(
            tev["budget"], tev["paper_reduction"], marker="D", color=GREY, linestyle=":", label="the paper's (H20)"
        )
        below.axhline(0, color=MUTED, linewidth=1)
        above.set_title(f"{SHAPE_NAMES[shape]}, T = {temperature:g}")
        above.set_yscale("log")
        below.set_xscale("log", base=2)
        below.set_xticks(sizes, [str(size) for size in sizes])
        below.minorticks_off()
        below.set_xlabel("tree budget B")
    axes[0][0].set_ylabel("ms a round")
    axes[1][0].set_ylabel("TEV saves\nagainst predraw (%)")
    shown, names = axes[0][0].get_legend_handles_labels()
    paper, name = (found[-1:] for found in axes[1][0].get_legend_handles_labels())
    figure.legend(shown + paper, names + name, loc="outside upper center", ncols=4)
    finished = {(row.shape, row.temperature, row.budget) for row in averages.itertuples()}
    return figure, hashes({
        key: [o for o in cells if (o["cell"]["shape"], o["cell"]["temperature"], o["cell"]["budget"]) == key]
        for key in finished
    })  # fmt: skip


@styled
def audit(outcomes: Sequence[Mapping]):
    """Every decode cell once: its mean block length against its own ceiling, and z; |z| over 4 is marked."""
    cells = audited(outcomes)
    if not cells:
        raise NotMeasured("no decode cell is finished")
    z = sorted(o["metrics"]["audit_z"] for o in cells if o["cell"]["temperature"] > 0)
    figure, axes = grid(1, 2, (11.5, 4.4))
    left, right = axes[0]
    most = 1.04 * max(max(o["metrics"]["ceiling"], o["metrics"]["tau_pooled"]) for o in cells)
    left.plot([1, most], [1, most], color=MUTED, linewidth=1.2)
    for greedy, marker, colour in ((True, "s", GREY), (False, "o", BLUE)):
        points = [o["metrics"] for o in cells if (o["cell"]["temperature"] == 0) == greedy]
        left.plot([m["ceiling"] for m in points], [m["tau_pooled"] for m in points], marker, color=colour, markersize=5,
                  alpha=0.7, label="T = 0" if greedy else "T > 0")  # fmt: skip
    left.set_xlabel("mean ceiling 1 + C_p of a cell's trees")
    left.set_ylabel("its mean block length")
    left.legend()
    n = len(z)
    normal = [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]
    right.axhspan(-3, 3, color="#EAF3FA", zorder=0)
    right.plot([-3, 3], [-3, 3], color=MUTED, linewidth=1.2)
    colours = [VERMILION if is_marked(value) else BLUE for value in z]
    right.scatter(normal, z, s=26, c=colours, alpha=0.8, linewidths=0)
    right.set_xlabel(f"what {n} standard normal numbers would be")
    right.set_ylabel("z of the cells with T > 0")
    most = max([4.5, *(abs(value) + 0.5 for value in z)])
    right.set_ylim(-most, most)
    return figure, sorted({o["hash"] for o in cells})


def audited(outcomes: Sequence[Mapping]) -> list[Mapping]:
    """Finished decode cells, each record once, that the audit speaks of: all but sampled chains and those without z."""
    found = {
        o["hash"]: o
        for o in outcomes
        if o["status"] == "finished"
        and o["cell"].get("builder", "sampled_chain") != "sampled_chain"
        and o["metrics"]["audit_z"] is not None
    }
    return list(found.values())
