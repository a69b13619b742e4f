"""The widget in Python: state, still pictures, one handler, errors that are shown."""

import base64
import io

import pytest
from PIL import Image

from tests.explorer.made import HOSTILE, made_recording
from tevlib.decoding.generation import Generation, Round
from tevlib.explorer.widget import TreeExplorer


def test_the_bundle_has_a_picture_for_every_front_end():
    """Live view, an `img` with an SVG inside, PNG, and text that says something: no frame, no bare SVG, no `object at`.

    jupyter/nbconvert#1954, nteract/papermill#400: what shows a notebook without the widget shows the next of these.
    """
    data, _ = TreeExplorer(made_recording(labels=HOSTILE))._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "text/html", "image/png", "text/plain"} == set(data)
    assert data["text/html"].startswith("<img alt=") and data["text/html"].count("<") == 1
    svg = base64.b64decode(data["text/html"].split("base64,")[1].rstrip('">')).decode()
    assert svg.startswith("<svg") and "C_p" in svg
    assert Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).width > 400
    assert "ceiling" in data["text/plain"] and "leaves at" in data["text/plain"]


def test_files_are_written_with_their_folder(tmp_path):
    """SVG, PNG and HTML, each once more the same bytes; the page holds the state that is shown."""
    explorer = TreeExplorer(made_recording(), round=1, colour_by="P", theme="dark")
    for name, save in (("a.svg", explorer.save_svg), ("a.png", explorer.save_png), ("a.html", explorer.save_html)):
        first = save(tmp_path / "new" / name).read_bytes()
        assert first == save(tmp_path / "new" / name).read_bytes()
    page = explorer.page()
    assert '"round":1' in page and '"colour_by":"P"' in page and "http://" not in page.replace("http://www.w3.org", "")


def test_the_flow_follows_the_state():
    """Budget, temperature and what-if set from Python change P, w and C_p as in the browser."""
    explorer = TreeExplorer(made_recording())
    whole = explorer.flow.coverage
    explorer.budget = 5
    assert len(explorer.flow.alive) == 6 and explorer.flow.coverage < whole
    explorer.budget = -1
    token = explorer.tree["missing"][0][0]
    explorer.what_if = [["add", 0, token]]
    assert explorer.flow.coverage - whole == pytest.approx(explorer.flow.P[-1], abs=1e-12)


def test_what_does_not_fit_is_refused():
    """Unknown temperature, round, colour, state name, and rounds that are no recording."""
    explorer = TreeExplorer(made_recording())
    with pytest.raises(ValueError, match=r"temperature 0.9 was not recorded; recorded are 0.0, 0.6, 1.0"):
        explorer.temperature = 0.9
    with pytest.raises(ValueError, match="answer must be 0 to 0; got 4"):
        explorer.answer = 4
    with pytest.raises(ValueError, match="round must be 0 to 1; got 7"):
        TreeExplorer(made_recording(), round=7)
    with pytest.raises(ValueError, match="unknown colour; an explorer has"):
        TreeExplorer(made_recording(), colour="w")
    with pytest.raises(ValueError, match="at least one round"):
        TreeExplorer(Generation([1], [], "stop", 0.0, 0.0))


def test_one_handler_whatever_is_run_again():
    """Setting a handler three times (a cell run three times) leaves one call a change; ipywidgets#3882, #1919."""
    explorer = TreeExplorer(made_recording())
    calls = []
    for _ in range(3):
        explorer.on_change(lambda shown: calls.append(shown.round))
    explorer.round = 1
    assert calls == [1]
    explorer.on_change(None)
    explorer.round = 0
    assert calls == [1]


def test_an_error_in_a_handler_is_shown_and_the_state_kept():
    """The message is in the widget, the change stands, and the next good call clears it."""
    explorer = TreeExplorer(made_recording())

    def broken(shown):
        if shown.round:
            raise KeyError("no such thing")

    explorer.on_change(broken)
    explorer.round = 1
    assert explorer.round == 1 and "KeyError" in explorer.error and "no such thing" in explorer.error
    explorer.round = 0
    assert explorer.error == ""


def test_a_generation_can_be_given():
    """`TreeExplorer(generation)` draws what the rounds hold."""
    import torch

    from tests.explorer.made import random_logits, random_tree
    from tevlib.trees.exit_law import exit_law

    tree = random_tree(9, 2)
    law = exit_law(tree, random_logits(9, 2), torch.tensor(0.6).item())
    cycle = Round(tree, law.P, law.w, float(law.coverage), [0], 5, emitted=1)
    explorer = TreeExplorer(Generation([1, 5], [cycle], "stop", 0.0, 0.0), label="t{}".format, temperature=0.6)
    assert explorer.flow.coverage == pytest.approx(float(law.coverage), abs=1e-6)
    assert explorer.drawing().width > 0
