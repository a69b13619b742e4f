"""`TreeExplorer`: the interactive widget over recorded rounds, and its still pictures for where no front end runs."""

import base64
import html
from collections.abc import Callable, Mapping
from pathlib import Path

import anywidget
import traitlets

from tevlib.explorer.drawing import Drawing, draw_round
from tevlib.explorer.flow import Flow, flow
from tevlib.explorer.page import EXPORT, one_file_page, script, style
from tevlib.explorer.recording import recording_of
from tevlib.explorer.scene import COLOUR_BY, scene_of
from tevlib.explorer.svg import to_png, to_svg

STATE = (
    "answer", "round", "budget", "temperature", "colour_by", "log_scale", "compare", "selected", "what_if", "verifier",
    "seed", "theme",
)  # fmt: skip


class TreeExplorer(anywidget.AnyWidget):
    """Draft trees to look into: where target mass flows and leaves, what a token more would gain, how a verifier plays.

    Args:
        rounds: a recording (`tevlib.explorer.recording`), or a finished generation, which holds less: one temperature
            and no missing tokens.
        label: for a generation, token id -> text.
        temperature: for a generation, what it was decoded at.

    Everything happens in the browser; the traits below follow, and may be set: `answer` and `round` (places in the
    recording), `budget` (draft tokens kept; -1 for all), `temperature` (one of the recorded), `colour_by`, `log_scale`,
    `compare` (place of the second tree; -1 for none), `selected` (pinned node; -1 for none), `what_if` (changes such as
    `["add", node, token]` and `["drop", node, -1]`), `verifier`, `seed`, `theme` (auto, light, dark).

    Raises ValueError for what is no recording, and for a trait that has no such value.
    """

    _esm = script() + EXPORT
    _css = style()

    scene = traitlets.Dict().tag(sync=True)
    answer = traitlets.Int(0).tag(sync=True)
    round = traitlets.Int(0).tag(sync=True)
    budget = traitlets.Int(-1).tag(sync=True)
    temperature = traitlets.Float(1.0).tag(sync=True)
    colour_by = traitlets.Enum(list(COLOUR_BY), "w").tag(sync=True)
    log_scale = traitlets.Bool(False).tag(sync=True)
    compare = traitlets.Int(-1).tag(sync=True)
    selected = traitlets.Int(-1).tag(sync=True)
    what_if = traitlets.List().tag(sync=True)
    verifier = traitlets.Enum(["tev", "predraw", "sequential_residual"], "tev").tag(sync=True)
    seed = traitlets.Int(0, min=0).tag(sync=True)
    theme = traitlets.Enum(["auto", "light", "dark"], "auto").tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)

    def __init__(self, rounds, *, label: Callable[[int], str] = str, temperature: float = 1.0, **state):
        recording = rounds if isinstance(rounds, Mapping) else recording_of(rounds, label, temperature)
        scene = scene_of(recording)
        unknown = set(state) - set(STATE)
        if unknown:
            raise ValueError(f"unknown {', '.join(sorted(unknown))}; an explorer has {', '.join(STATE)}")
        self._handler: Callable | None = None
        said = scene["answers"][_within("answer", state.get("answer", 0), len(scene["answers"]))]
        _within("round", state.get("round", 0), len(said["rounds"]))
        super().__init__(scene=scene, **{"temperature": said["temperature"], **state})

    @traitlets.validate("answer", "round", "temperature")
    def _check(self, proposal):
        name, value = proposal["trait"].name, proposal["value"]
        if not self.scene:  # while the widget is being made
            return value
        if name == "temperature":
            if value not in self.scene["temperatures"]:
                known = ", ".join(map(str, self.scene["temperatures"]))
                raise ValueError(f"temperature {value} was not recorded; recorded are {known}")
        elif name == "answer":
            _within("answer", value, len(self.scene["answers"]))
        return value

    @property
    def size(self) -> int:
        """Bytes of the rounds as the browser gets them."""
        return self.scene["bytes"]

    @property
    def tree(self) -> Mapping:
        """The recorded columns of the tree that is shown."""
        return self._cycle["trees"][0]

    @property
    def flow(self) -> Flow:
        """P, rho, w and C_p of the tree that is shown: this budget, this temperature, what-if included."""
        stop = self.scene["temperatures"].index(self.temperature)
        budget = None if self.budget < 0 else self.budget
        return flow(self.tree, self.temperature, stop, budget, [tuple(edit) for edit in self.what_if])

    def on_change(self, handler: Callable[["TreeExplorer"], object] | None) -> None:
        """Call `handler(explorer)` once after every change of what is shown; None for nobody.

        There is one handler: a new one takes the old one's place, however often a cell is run. What it raises is shown
        in the widget and changes nothing there.
        """
        self._handler = handler

    @traitlets.observe(*STATE)
    def _changed(self, change) -> None:
        if self._handler is None:
            return
        try:
            self._handler(self)
        except Exception as problem:
            self.error = f"{type(problem).__name__} in the cell's own function: {problem}"
        else:
            self.error = ""

    def drawing(self, theme: str = "light") -> Drawing:
        """The still picture of the round that is shown, at the temperature and with the budget that it was recorded."""
        which = max(self.compare, 0)
        return draw_round(
            self.scene, self.answer, self.round, which, by=self.colour_by, log=self.log_scale, theme=theme
        )

    def save_svg(self, path: Path | str, theme: str = "light") -> Path:
        """The path of the SVG file written: the round that is shown, no script, nothing fetched."""
        return _write(path, to_svg(self.drawing(theme), self.summary()).encode())

    def save_png(self, path: Path | str, theme: str = "light", scale: float = 2.0) -> Path:
        """The path of the PNG file written: the same picture at `scale` pixels per unit."""
        return _write(path, to_png(self.drawing(theme), scale))

    def save_html(self, path: Path | str) -> Path:
        """The path of the page written: the whole explorer, interactive, in one file that needs no network."""
        return _write(path, self.page().encode())

    def page(self) -> str:
        """The one-file page as text, in the state that is shown."""
        return one_file_page(self.scene, {name: getattr(self, name) for name in STATE})

    def summary(self) -> str:
        """What the picture says, in two lines of text."""
        said, found = self.scene["answers"][self.answer], self.flow
        leak = max(found.alive, key=lambda node: found.w[node])
        label = "the root" if leak == 0 else repr(self.scene["labels"][str(found.tokens[leak])])
        return (
            f"Draft tree of {said['name']}, round {self.round + 1} of {len(said['rounds'])}: "
            f"{len(found.alive) - 1} draft tokens, C_p {found.coverage:.3f}, ceiling {1 + found.coverage:.3f} tokens.\n"
            f"Most target mass leaves at {label} (w = {found.w[leak]:.3f})."
        )

    def __repr__(self) -> str:
        return self.summary()

    def _repr_mimebundle_(self, **kwargs) -> tuple[dict, dict]:
        """The live view, and for where there is none: an image (SVG in an `img`, as sanitizers keep it), PNG, text."""
        found = super()._repr_mimebundle_(**kwargs)
        data, metadata = found if isinstance(found, tuple) else (found, {})
        drawing = self.drawing()
        encoded = base64.b64encode(to_svg(drawing, self.summary()).encode()).decode()
        picture = f'<img alt="{html.escape(self.summary())}" src="data:image/svg+xml;base64,{encoded}">'
        still = {
            "text/plain": self.summary(),
            "text/html": picture,
            "image/png": base64.b64encode(to_png(drawing, 1.0)).decode(),
        }
        return {**data, **still}, metadata

    @property
    def _cycle(self) -> Mapping:
        return self.scene["answers"][self.answer]["rounds"][self.round]


def _within(name: str, value: int, n: int) -> int:
    if not 0 <= value < n:
        raise ValueError(f"{name} must be 0 to {n - 1}; got {value}")
    return value


def _write(path: Path | str, data: bytes) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
