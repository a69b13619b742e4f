"""Recording, scene, colours, SVG and PNG: what is shown is what was recorded, and hostile text stays text."""

import itertools
import json
import math
import xml.etree.ElementTree as ET

import pytest

from tests.explorer.made import HOSTILE, made_recording, random_logits, random_tree
from tevlib.decoding.generation import Generation, Round
from tevlib.explorer import colours
from tevlib.explorer.drawing import Box, Curve, Text, draw_round, number, thickness
from tevlib.explorer.flow import flow
from tevlib.explorer.labels import columns, short, visible
from tevlib.explorer.page import script_json
from tevlib.explorer.recording import check_recording, load_recording, recording_of, save_recording
from tevlib.explorer.scene import layout_of, scene_of
from tevlib.explorer.svg import to_png, to_svg
from tevlib.trees.exit_law import exit_law

SVG = "{http://www.w3.org/2000/svg}"


def test_ramps_are_even_and_readable():
    """Steps look equally far apart, lightness never turns back, and ink on every shade has contrast of 4.5 or more."""
    ramps = colours.ramps()
    for name, ramp in ramps.items():
        assert len(ramp) == colours.STEPS + 1
        assert min(colours.contrast(shade, colours.readable_on(shade)) for shade in ramp) >= 4.5
        lab = [colours.oklab(shade) for shade in ramp[::5]]  # in fives: the 8 bits of a channel round single steps
        steps = [math.dist(a, b) for a, b in itertools.pairwise(lab)]
        half = len(steps) // 2
        for arm in (steps[:half], steps[half:]) if "diverging" in name else (steps,):
            assert max(arm) < 1.25 * min(arm), name
        lightness = [shade[0] for shade in lab]
        if "diverging" not in name:
            assert lightness == sorted(lightness, reverse=name == "light")


def test_places_on_the_ramp():
    """Linear: 0 to the largest; logarithmic: from 0.0001 up, equal factors take equal steps."""
    assert [colours.place(v, 0.5, False) for v in (0, 0.25, 0.5, 0.7)] == [0, 0.5, 1, 1]
    assert [colours.place(v, 1, True) for v in (0, 1e-5, 1e-4, 1e-2, 1)] == pytest.approx([0, 0, 0, 0.5, 1])
    assert colours.place(0.0, 0.0, False) == 0


def test_what_cannot_be_seen_is_written_out():
    """Newlines, control characters and direction marks are escaped; wide labels are cut by columns, not characters."""
    assert visible("a\nb\u202e\x00é世") == "a\\nb\\u202e\\x00é世"
    assert visible("a\nb", keep="\n") == "a\nb"
    assert columns("世界a") == 5 and short("世界世界世界世界") == "世界世界世界…"
    assert short("a" * 14) == "a" * 14 and short("a" * 15) == "a" * 13 + "…"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("by", ["w", "P", "rho", "draft", "mismatch"])
def test_every_picture_is_whole(by, theme):
    """Boxes for all nodes, an edge each, the ring on exactly the path, a chip for the bonus, valid XML."""
    scene = scene_of(made_recording())
    drawing = draw_round(scene, by=by, theme=theme)
    here = scene["answers"][0]["rounds"][0]
    boxes = [shape for shape in drawing.shapes if isinstance(shape, Box) and shape.title.count("ρ")]
    assert len(boxes) == len(here["trees"][0]["tokens"])
    assert [i for i, box in enumerate(boxes) if box.stroke == colours.ACCENT[theme]] == sorted(here["path"])
    edges = [shape for shape in drawing.shapes if isinstance(shape, Curve)]
    assert len(edges) == len(boxes) - 1 + 1 + 2  # the bonus token's, two in the legend
    root = ET.fromstring(to_svg(drawing))
    assert len(root.findall(f"{SVG}rect")) == 1 + len([s for s in drawing.shapes if isinstance(s, Box)])


def test_shade_and_thickness_are_the_law():
    """The fill of a box is its w on the ramp, the width of an edge its P; the numbers are in the header."""
    recording = made_recording(nodes=(15,))
    scene = scene_of(recording)
    found = flow(recording["answers"][0]["rounds"][0]["trees"][0], 1.0, 2)
    drawing = draw_round(scene)
    boxes = [shape for shape in drawing.shapes if isinstance(shape, Box) and shape.title.count("ρ")]
    for node, box in enumerate(boxes):
        assert box.fill == colours.ramps()["light"][math.floor(100 * found.w[node] / max(found.w) + 0.5)]
    widths = sorted(s.width for s in drawing.shapes if isinstance(s, Curve))
    for node in range(1, 15):
        assert any(w == pytest.approx(thickness(found.P[node])) for w in widths)
    said = " ".join(shape.text for shape in drawing.shapes if isinstance(shape, Text))
    assert f"C_p = {found.coverage:.3f}" in said and f"ceiling 1 + C_p = {1 + found.coverage:.3f}" in said


def test_hostile_labels_stay_text():
    """`</script>`, quotes, newlines, direction marks, NUL: the SVG parses, has no script, and says them readably."""
    scene = scene_of(made_recording(nodes=(40,), labels=HOSTILE))
    svg = to_svg(draw_round(scene))
    root = ET.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {"svg", "rect", "path", "text", "title"}
    said = "".join(root.itertext())
    assert "\\u202e" in said and "\u202e" not in svg and "\x00" not in svg
    text = script_json(scene)
    assert "<" not in text and json.loads(text)["labels"]["3"] == HOSTILE[3]
    assert to_png(draw_round(scene_of(made_recording(labels={3: "$x^2$", 5: "\\frac{"}))))[:4] == b"\x89PNG"


def test_numbers_fit_their_place():
    """At most four characters, a dot for what rounds to nothing."""
    assert [number(v) for v in (0.004, 0.314, 1.0, -0.5, None, 0.999)] == ["·", ".31", "1.0", "-.50", "", "1.0"]


def test_a_recording_comes_back(tmp_path):
    """Saved and loaded it is the same, gzip or not; the same recording gives the same bytes."""
    recording = made_recording()
    for name in ("a.json", "a.json.gz", "b.json.gz"):
        assert load_recording(save_recording(recording, tmp_path / name)) == recording
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_what_is_no_recording_is_refused(tmp_path):
    """Another format, no rounds, short columns, a path that is none, a token without label, a torn file."""
    broken = [
        ("format", lambda r: r.update(format=0), "has format 1; got 0"),
        ("empty", lambda r: r["answers"][0].update(rounds=[]), "at least one round"),
        ("short", lambda r: r["answers"][0]["rounds"][0]["trees"][0]["log_p"].pop(), "column log_p has 11"),
        ("path", lambda r: r["answers"][0]["rounds"][1].update(path=[0, 16, 1]), "round 1: .* is no path"),
        ("label", lambda r: r["labels"].pop("7"), "token 7 has no label"),
        ("stop", lambda r: r["answers"][0].update(temperature=0.7), "temperature 0.7 is none of"),
    ]
    for _, damage, words in broken:
        recording = made_recording(nodes=(12, 17))
        damage(recording)
        with pytest.raises(ValueError, match=words):
            check_recording(recording)
    (tmp_path / "torn.json.gz").write_bytes(save_recording(made_recording(), tmp_path / "a.json.gz").read_bytes()[:300])
    with pytest.raises(ValueError, match=r"torn\.json\.gz is no recording"):
        load_recording(tmp_path / "torn.json.gz")
    with pytest.raises(ValueError, match="got list"):
        check_recording([])


def test_too_much_is_refused():
    """More than 2 MB of JSON is refused with its size, not sent to the browser."""
    with pytest.raises(ValueError, match=r"\d MB of rounds are more than the 2 MB"):
        scene_of(made_recording(nodes=(500,) * 12))


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_a_generation_is_shown_with_what_it_holds(temperature):
    """Rounds without logits: P, w and C_p as decoded, the path and the bonus, no missing tokens."""
    tree, logits = random_tree(20, 4), random_logits(20, 4)
    law = exit_law(tree, logits, temperature)
    path = tree.node_path(9)
    cycle = Round(tree, law.P, law.w, float(law.coverage), path, 3, emitted=len(path))
    recording = recording_of(Generation([1, *tree.path(9), 3], [cycle], "stop", 0.0, 0.0), "t{}".format, temperature)
    scene = scene_of(recording)
    found = flow(scene["answers"][0]["rounds"][0]["trees"][0], temperature, 0)
    assert found.P == pytest.approx(law.P.tolist(), abs=1e-6) and found.w == pytest.approx(law.w.tolist(), abs=1e-6)
    assert scene["answers"][0]["pieces"][0] == "t1" and scene["labels"]["3"] == "t3"


def test_the_first_line_is_the_text():
    """In every tree the tokens that the text runs through lie in the root's row, to the end of the accepted path."""
    scene = scene_of(made_recording(nodes=(25, 30)))
    for cycle in scene["answers"][0]["rounds"]:
        row = cycle["trees"][0]["layout"]["row"]
        assert {row[node] for node in cycle["path"]} == {0}


def test_the_layout_of_the_scene_fits_the_picture():
    """All boxes and texts lie inside the drawing, for one node and for many."""
    for nodes in (1, 2, 60):
        scene = scene_of(made_recording(nodes=(nodes,)))
        drawing = draw_round(scene)
        assert len(layout_of(scene["answers"][0]["rounds"][0]["trees"][0]).row) == nodes
        for shape in drawing.shapes:
            if isinstance(shape, Box):
                assert 0 <= shape.x and shape.x + shape.width <= drawing.width
                assert 0 <= shape.y and shape.y + shape.height <= drawing.height
