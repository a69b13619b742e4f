"""The scene: a recording with layout and colours, the one state that widget, one-file page, SVG and PNG draw from."""

import math
from collections.abc import Mapping

from tevlib.explorer import colours, layout
from tevlib.explorer.flow import flow
from tevlib.explorer.labels import short, visible
from tevlib.explorer.page import script_json
from tevlib.explorer.recording import check_recording

MOST_BYTES = 2_000_000
COLOUR_BY = {
    "w": "w(v): target mass that leaves the tree here",
    "P": "P(v): target mass that runs through",
    "rho": "ρ(v): share of that mass that leaves here",
    "draft": "what the drafter gave the path",
    "mismatch": "drafter minus target, for the path",
}


def scene_of(recording: Mapping) -> dict:
    """The scene of a recording: labels made safe to show, a layout for every tree, palettes.

    Raises ValueError for what `check_recording` refuses and for more than 2 MB of JSON (naming the size).
    """
    check_recording(recording)
    labels = {token: visible(text) for token, text in recording["labels"].items()}
    cut = {token: short(text) for token, text in labels.items()}
    answers = []
    for answer in recording["answers"]:
        stop = recording["temperatures"].index(answer["temperature"])
        rounds = []
        for index, cycle in enumerate(answer["rounds"]):
            text = text_from(answer, index)
            trees = [_with_layout(tree, cut, answer["temperature"], stop, text) for tree in cycle["trees"]]
            rounds.append({**cycle, "trees": trees})
        texts = {
            "name": visible(answer["name"]),
            "prompt": visible(answer["prompt"], keep="\n\t"),
            "pieces": [visible(piece, keep="\n\t") for piece in answer["pieces"]],
        }
        answers.append({**answer, **texts, "rounds": rounds})
    scene = {
        "target": recording["target"],
        "temperatures": recording["temperatures"],
        "labels": labels,
        "short": {token: text for token, text in cut.items() if text != labels[token]},
        "answers": answers,
        "geometry": {"row": layout.ROW, "box": layout.BOX, "gap": layout.GAP, "margin": layout.MARGIN},
        "ramps": colours.ramps(),
        "smallest": colours.SMALLEST,
        "colourBy": COLOUR_BY,
    }
    scene["bytes"] = len(script_json(scene).encode())
    if scene["bytes"] > MOST_BYTES:
        raise ValueError(
            f"{scene['bytes'] / 1e6:.1f} MB of rounds are more than the {MOST_BYTES / 1e6:.0f} MB that an explorer "
            "holds: give it fewer answers or rounds"
        )
    return scene


def text_from(answer: Mapping, index: int) -> list[int]:
    """Tokens of the text from round `index` on: its own block, then the blocks of the rounds behind it."""
    text: list[int] = []
    for cycle in answer["rounds"][index:]:
        text += [cycle["trees"][0]["tokens"][node] for node in cycle["path"][1:]] + [cycle["bonus"]]
    return text


def walk(tree: Mapping, text: list[int]) -> list[int]:
    """Nodes of `tree` that `text` runs through, root first."""
    edges = zip(tree["parents"], tree["tokens"], strict=True)
    child = {edge: node for node, edge in enumerate(edges)}
    path = [0]
    for token in text:
        if (path[-1], token) not in child:
            break
        path.append(child[path[-1], token])
    return path


def children_of(parents: list[int], mass: list[float]) -> list[list[int]]:
    """Children of every node, those with most `mass` first, equal ones in node order."""
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], start=1):
        children[parent].append(node)
    return [sorted(below, key=lambda node: (-mass[node], node)) for below in children]


def layout_of(tree: Mapping) -> layout.Layout:
    """The `Layout` that a scene's tree carries."""
    return layout.Layout(**tree["layout"])


def _with_layout(tree: Mapping, cut: Mapping[str, str], temperature: float, stop: int, text: list[int]) -> dict:
    """The tree with its layout: the text's own tokens go on in one row, then the likeliest child under the target."""
    mass = list(flow(tree, temperature, stop).P)
    for node in walk(tree, text):
        mass[node] = math.inf
    found = layout.tidy_layout(children_of(tree["parents"], mass), [cut[str(token)] for token in tree["tokens"]])
    return {
        **tree,
        "name": visible(tree["name"]),
        "layout": {"depth": found.depth, "row": found.row, "left": found.left, "width": found.width},
    }
