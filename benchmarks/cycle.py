"""Where a round's time goes: the models' own modules against everything else, stage by stage, and a picture of it.

    python -m benchmarks --only cycle

Model time is what the target's decoder and head and the drafter's passes take by themselves, measured at their calls;
all else is ours: masks, trees, verdicts, the key/value store, copies, Python. Rounds of all settings are decoded in
turns. Records for the books are outside the decode clock and outside these numbers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm.auto import tqdm

from benchmarks.common import bar, models, prompt_ids, rotated, with_interval
from tevlib.decoding.decode import speculate
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.target import Target
from tevlib.report.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILION, YELLOW, styled

MODEL = ("drafter", "draft head", "target", "target head")
OURS = ("draft", "build", "verify", "decide", "commit", "emit")
COLOURS = {
    "drafter": SKY, "draft head": "#A9D7F2", "target": BLUE, "target head": "#6FB1DA",
    "draft": ORANGE, "build": GREEN, "verify": GREY, "decide": VERMILION, "commit": YELLOW, "emit": PURPLE,
}  # fmt: skip
BUDGET = 32  # the one that is asked for
MOST = 0.06
FULL = {"prompts": 2, "tokens": 64, "budgets": (8, 16, 32, 64), "temperatures": (0.0, 1.0)}
QUICK = {"prompts": 1, "tokens": 24, "budgets": (8, 32), "temperatures": (0.0, 1.0)}


def measure(quick: bool = False) -> dict:
    """Milliseconds of a round by part and setting, the share that is not the models', and the bars."""
    return profile(*models(), **(QUICK if quick else FULL))


def profile(
    target: Target,
    drafter: DFlashDraftModel,
    prompts: int,
    tokens: int,
    budgets: Sequence[int],
    temperatures: Sequence[float],
    stop=None,
) -> dict:
    """What `measure` returns, from answers of `tokens` tokens to `prompts` prompts a suite."""
    settings = [(budget, temperature) for budget in budgets for temperature in temperatures]
    rows = []
    todo = prompt_ids(target, prompts)
    with watched(target, drafter) as watch, tqdm(total=len(todo) * len(settings), desc="cycle", unit="answer") as bars:
        for place, (_, name, ids) in enumerate([todo[0], *todo]):  # the first is the warm-up
            for budget, temperature in rotated(settings, place):
                watch.start()
                answer = speculate(
                    target, drafter, ids, budget=budget, temperature=temperature,
                    max_new_tokens=tokens if place else 8, stop=stop, seed=place,
                )  # fmt: skip
                if not place or not answer.rounds:
                    continue
                parts = parts_of(answer, watch.seconds)
                setting = {"budget": budget, "temperature": temperature, "prompt": name}
                rows.append(setting | {"rounds": len(answer.rounds), "decode_s": answer.decode_s, "parts": parts})
                bars.update()
    groups = {
        f"B = {b}, T = {t:g}": [row for row in rows if (row["budget"], row["temperature"]) == (b, t)]
        for b, t in settings
    }
    return {
        "rows": rows,
        "ms": {name: milliseconds(own) for name, own in groups.items()},
        "bars": [
            bar(
                f"not target or drafter forward, share of a cycle, B = {BUDGET}, T = {t:g}",
                with_interval(share_of_ours, groups[f"B = {BUDGET}, T = {t:g}"]),
                at_most=MOST,
            )
            for t in temperatures
            if BUDGET in budgets
        ],
    }


def parts_of(answer, model: dict[str, float]) -> dict[str, float]:
    """Seconds of one answer by part: the models' as they were measured, and what remains of each stage."""
    stages = answer.stage_s
    ours = {
        **stages,
        "draft": stages["draft"] - model["drafter"] - model["draft head"],
        "verify": stages["verify"] - model["target"] - model["target head"],
        "emit": answer.decode_s - sum(stages.values()),
    }
    return {**model, **{stage: ours[stage] for stage in OURS}}


def milliseconds(rows: Sequence[dict]) -> dict[str, float]:
    """Mean milliseconds of a round by part."""
    rounds = sum(row["rounds"] for row in rows)
    return {part: 1e3 * sum(row["parts"][part] for row in rows) / rounds for part in (*MODEL, *OURS)}


def share_of_ours(rows: Sequence[dict]) -> float:
    """Share of the decode clock in which no model was running."""
    model = sum(row["parts"][part] for row in rows for part in MODEL)
    return 1 - model / sum(row["decode_s"] for row in rows)


class Watch:
    """Seconds inside the models since `start`, by part, of the rounds alone: from a draft's beginning to its commit."""

    def __init__(self):
        self.start()

    def start(self) -> None:
        self.seconds = dict.fromkeys(MODEL, 0.0)
        self.stage = ""  # "draft", "verify", or outside a round: a prefill, records for the books

    def timed(self, call, part: dict[str, str], begins: str | None = None, after: str | None = None):
        """`call` with its time added to the part that `part` has for the stage; it begins one, maybe only after one."""

        def timed(*arguments, **named):
            if begins and after in (None, self.stage):
                self.stage = begins
            start = time.perf_counter()
            result = call(*arguments, **named)
            if self.stage in part:
                self.seconds[part[self.stage]] += time.perf_counter() - start
            return result

        return timed

    def ending(self, commit):
        def ending(kept):
            self.stage = ""
            return commit(kept)

        return ending


@contextlib.contextmanager
def watched(target: Target, drafter: DFlashDraftModel) -> Iterator[Watch]:
    """A `Watch` on the calls of the two models, as before afterwards; right where calls do not queue: on a CPU."""
    watch = Watch()
    new_cache = target.new_cache

    def watched_cache(capacity: int):
        cache = new_cache(capacity)
        cache.commit = watch.ending(cache.commit)
        return cache

    replaced = [
        (drafter, "draft", watch.timed(drafter.draft, {"draft": "drafter"}, "draft")),
        (target.decoder, "forward", watch.timed(target.decoder.forward, {"verify": "target"}, "verify", after="draft")),
        (target.head, "forward", watch.timed(target.head.forward, {"draft": "draft head", "verify": "target head"})),
        (target, "new_cache", watched_cache),
    ]
    if drafter.vocabulary is not None:
        head = drafter.vocabulary.head
        replaced.append((head, "forward", watch.timed(head.forward, {"draft": "draft head"})))
    with contextlib.ExitStack() as stack:
        for owner, name, call in replaced:
            if name in vars(owner):
                stack.callback(vars(owner).__setitem__, name, vars(owner)[name])
            else:
                stack.callback(vars(owner).pop, name)
            vars(owner)[name] = call
        yield watch


@styled
def picture(result: dict):
    """A figure: above, a whole round as a bar per setting; below, the part of it that is not the models', enlarged."""
    from matplotlib.figure import Figure

    names = list(result["ms"])[::-1]
    size = (11, 2.2 + 0.62 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for axis, parts in ((left, (*MODEL, *OURS)), (right, OURS)):
        ends = [0.0] * len(names)
        for part in parts:
            widths = [max(result["ms"][name][part], 0.0) for name in names]
            axis.barh(range(len(names)), widths, 0.66, left=ends, color=COLOURS[part], edgecolor="white",
                      linewidth=0.5, label=part)  # fmt: skip
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        for place, (name, end) in enumerate(zip(names, ends, strict=True)):
            whole = sum(result["ms"][name].values())
            text = f"{whole:.0f} ms" if axis is left else f"{end:.1f} ms, {end / whole:.1%}"
            axis.annotate(text, (end, place), (5, 0), textcoords="offset points", va="center", color=INK, fontsize=11)
        axis.set_xlim(0, (1.3 if axis is left else 1.6) * max(ends))
        axis.grid(False, axis="y")
        axis.set_xlabel("milliseconds of a round")
    left.set_yticks(range(len(names)), names)
    left.set_title("a whole round: models in blue")
    right.set_title("what is not the models', enlarged")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=11, columnspacing=1.2)
    return figure


def save_picture(result: dict, path: Path) -> Path:
    """The picture as a PNG at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(result).savefig(path, dpi=160)
    return path
