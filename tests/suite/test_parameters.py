"""Parameters of notebooks: unknown names and wrong types are refused before a kernel starts."""

from pathlib import Path

import nbformat
import numpy as np
import pytest

from tevlib.suite.parameters import checked, declared, from_text

CELL = """
budgets: list[int] = [16]  # nodes
top_p: float = 1.0  # nucleus
seed: int | None = 0  # of the draws
name: str = "x"  # a label
fast: bool = False  # or not
more: dict = {}  # anything else
"""


def known(write_notebook, text=CELL):
    return declared(nbformat.read(write_notebook("1", parameters=text), as_version=4), "n.ipynb")


def test_declarations_carry_type_default_and_help(write_notebook):
    """Name, type, default and comment of each line are read."""
    found = known(write_notebook)
    assert list(found) == ["budgets", "top_p", "seed", "name", "fast", "more"]
    assert (found["seed"].kind, found["seed"].default, found["seed"].help) == (int | None, 0, "of the draws")


@pytest.mark.parametrize(
    ("key", "value", "result"),
    [
        ("budgets", (16, 64), [16, 64]),  # papermill would pass the string "(16, 64)"
        ("budgets", [np.int64(8)], [8]),
        ("top_p", 1, 1.0),
        ("top_p", np.float32(0.5), 0.5),
        ("top_p", float("inf"), float("inf")),
        ("seed", None, None),
        ("seed", np.int64(3), 3),
        ("fast", np.bool_(True), True),
        ("name", Path("a/b"), "a/b"),
        ("more", {"a": (1, {"b": None})}, {"a": [1, {"b": None}]}),
    ],
)
def test_values_become_plain(write_notebook, key, value, result):
    """numpy scalars, tuples and paths arrive as what they mean."""
    found = checked({key: value}, known(write_notebook), "n.ipynb")[key]
    assert found == result and type(found) is type(result)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("top_p", "0.9"),  # a string is no number, though papermill would pass it on
        ("top_p", None),
        ("top_p", True),
        ("budgets", 16),
        ("budgets", ["16"]),
        ("budgets", {16}),
        ("budgets", np.array([16])),
        ("seed", 1.0),
        ("seed", True),
        ("fast", 1),
        ("name", b"x"),
        ("more", {1: 2}),  # papermill would make it {"1": 2}
    ],
)
def test_wrong_types_are_refused_by_name(write_notebook, key, value):
    """A value that is not of the declared type is a ValueError that names the parameter."""
    with pytest.raises(ValueError, match=f"parameter '{key}'"):
        checked({key: value}, known(write_notebook), "n.ipynb")


def test_unknown_parameters_are_answered_with_the_nearest(write_notebook):
    """papermill#245: a misspelt parameter ran the notebook with its default."""
    with pytest.raises(ValueError, match=r"n.ipynb has no parameter 'budgte'; did you mean 'budgets'\?"):
        checked({"budgte": [1]}, known(write_notebook), "n.ipynb")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("top_p", "0.9", 0.9),
        ("top_p", "1e-6", 1e-6),
        ("top_p", "1", 1.0),
        ("seed", "None", None),
        ("seed", "7", 7),
        ("fast", "true", True),
        ("name", "007", "007"),  # papermill's -p would make it 7
        ("name", "12e4567", "12e4567"),  # and this one inf
        ("name", "None", "None"),
        ("budgets", "[1, 2]", [1, 2]),  # and leave this one a string
    ],
)
def test_command_line_text_follows_the_declared_type(write_notebook, key, text, value):
    """What a text means is decided by the declaration, not by what it looks like."""
    assert from_text(text, known(write_notebook)[key]) == value


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), ("auto", "auto"), ("1.5", "1.5"), ("None", "None"), ("[1]", "[1]")]
)
def test_a_number_or_a_word_is_told_apart(write_notebook, text, value):
    """A budget of 10 from a command line is the number; what is no whole number stays the word that it may be."""
    found = from_text(text, known(write_notebook, "budget: int | str = 16  # or auto\n")["budget"])
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(("key", "text"), [("seed", "1.5"), ("seed", "x"), ("top_p", "much"), ("fast", "1")])
def test_command_line_text_that_does_not_fit_is_refused(write_notebook, key, text):
    """Text of another type is a ValueError that names the parameter."""
    with pytest.raises(ValueError, match=f"parameter '{key}'"):
        from_text(text, known(write_notebook)[key])


@pytest.mark.parametrize(
    "text", ["a = 1\n", "a: int = 1\nb: int = a * 2\n", "a: complex = 1\n", "import os\n", None], ids=str
)
def test_cells_that_are_no_declarations_are_refused(write_notebook, text):
    """A parameters cell holds annotated literals: a value derived from another would be stale after injection."""
    with pytest.raises(ValueError, match="parameters"):
        known(write_notebook, text)
