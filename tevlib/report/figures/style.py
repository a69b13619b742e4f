"""How every figure looks, and how it is written: one palette, one set of sizes, the same bytes for the same records."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

# seaborn's colour-blind palette by name; a test holds it against seaborn's own.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, BROWN, PINK, GREY, YELLOW, SKY = (
    "#0173B2", "#DE8F05", "#029E73", "#D55E00", "#CC78BC", "#CA9161", "#FBAFE4", "#949494", "#ECE133", "#56B4E9",
)  # fmt: skip
INK, MUTED = "#1D2430", "#5D6878"
ROLES = {  # a drafter keeps its colour in every figure: `original` and `ddtree` are the same released one
    "original": BLUE, "ddtree": BLUE, "exit": VERMILION, "opd": PURPLE, "gain": GREEN, "finetune": SKY,
    "prefix": ORANGE, "dflash_chain": BROWN, "sampled_chain": PINK, "autoregressive": GREY,
    "prompt_lookup": YELLOW,
}  # fmt: skip
VERIFIERS = {
    "predraw": BLUE, "predraw_reference": GREY, "predraw_lazy": SKY, "sequential_residual": ORANGE, "tev": VERMILION,
    "tev_parallel": VERMILION, "tev_descent": PURPLE, "greedy": GREY,
}  # fmt: skip
STAGES = {"draft": SKY, "build": GREEN, "verify": BLUE, "decide": VERMILION, "commit": YELLOW}
MARKERS = {"original": "o", "ddtree": "o", "exit": "s", "opd": "D", "gain": "^", "predraw": "o", "tev": "s",
           "sequential_residual": "^", "tev_parallel": "s", "tev_descent": "D", "predraw_lazy": "v",
           "predraw_reference": "x"}  # fmt: skip
FORMATS = ("pdf", "svg", "png")
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 12, "axes.titlesize": 12, "axes.titlelocation": "left",
    "axes.labelsize": 12, "axes.edgecolor": MUTED, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#E3E7ED", "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 2.2,
    "lines.markersize": 7, "figure.facecolor": "white", "savefig.facecolor": "white", "svg.fonttype": "path",
    "svg.hashsalt": "tevlib", "pdf.fonttype": 42,
}  # fmt: skip
_NO_DATES = {"pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
             "svg": {"Date": None, "Creator": None}, "png": {"Software": None}}  # fmt: skip


def styled(draw: Callable) -> Callable:
    """`draw` in the house style: what it makes has the sizes and colours of `STYLE`, whatever the caller's are."""

    @functools.wraps(draw)
    def drawn(*arguments, **options):
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*arguments, **options)

    return drawn


def colour_of(role: str) -> str:
    """The colour of a drafter's role; one that the paper and the profiles do not know is grey."""
    return ROLES.get(role, GREY)


def save_figure(figure, name: str, folder: Path | str, caption: str, sources: Sequence[str]) -> dict[str, Path]:
    """Paths by kind of `<folder>/<name>.{pdf,svg,png}` and `.json` (caption, sources); a second call, the same bytes.

    sources: hashes of the records that the figure shows, or the name and digest of a recording.
    """
    import matplotlib

    if not sources:
        raise ValueError(f"figure {name} names no source")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"{name}.{kind}" for kind in (*FORMATS, "json")}
    with matplotlib.rc_context(STYLE):
        for kind in FORMATS:
            figure.savefig(paths[kind], format=kind, dpi=160, metadata=_NO_DATES[kind])
    told = {"name": name, "caption": caption, "sources": sorted(set(sources))}
    paths["json"].write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return paths
