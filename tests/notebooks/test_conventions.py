"""What every shipped notebook must be: parameterised, clean, portable."""

import re
from pathlib import Path

import nbformat
import pytest

from tevlib.suite.parameters import checked, declared

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ALGORITHMS = re.compile(r"^\s*(def|class) ", re.MULTILINE)
# In the exercises the reader writes verifiers, weights and a builder, which no library can hold for him; they are
# functions called `my_...`, and nothing but the check below them uses them.
EXERCISES = {"12_reading_group", "13_reading_group_answers"}
NOT_THE_READER_S = re.compile(r"^\s*(def (?!my_)|class )", re.MULTILINE)
ABSOLUTE = re.compile(r"""["'](/|~/|[A-Z]:\\)""")


def test_notebooks_are_numbered():
    """Names are `NN_words` and sort in reading order; the four of the main job are there."""
    names = [path.stem for path in NOTEBOOKS]
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+", name) for name in names)
    assert {"00_quickstart", "21_decode_cell", "34_table4_crossed"} <= set(names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
class TestEveryNotebook:
    def test_has_one_parameters_cell_of_commented_literals(self, path):
        """papermill#67: exactly one tagged cell; each parameter annotated, a literal of its type, with a comment."""
        notebook = nbformat.read(path, as_version=4)
        found = declared(notebook, path.name)
        assert found and all(parameter.help for parameter in found.values())
        checked({p.name: p.default for p in found.values()}, found, path.name)
        first_code = next(cell for cell in notebook.cells if cell.cell_type == "code")
        assert "parameters" in first_code.metadata.tags

    def test_is_valid_and_clean(self, path):
        """nbformat accepts it; no outputs, counts, widget state or papermill traces; the kernel is python3."""
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert notebook.metadata.kernelspec.name == "python3"
        assert set(notebook.metadata) <= {"kernelspec", "language_info"}
        for cell in notebook.cells:
            assert "papermill" not in cell.metadata
            if cell.cell_type == "code":
                assert cell.outputs == [] and cell.execution_count is None

    def test_opens_with_what_it_does(self, path):
        """The first cell has the one top-level heading, the question, the paper's place, input, output and time."""
        notebook = nbformat.read(path, as_version=4)
        prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
        assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
        for word in ("**Question.**", "**Paper.**", "**Input.**", "**Output.**", "**Time.**"):
            assert word in notebook.cells[0].source
        assert sum(line.startswith("# ") for text in prose for line in text.splitlines()) == 1

    def test_is_portable_and_holds_no_algorithm(self, path):
        """No absolute path, no installation, no function or class but the reader's own: the others live in tevlib."""
        algorithms = NOT_THE_READER_S if path.stem in EXERCISES else ALGORITHMS
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                assert not ABSOLUTE.search(cell.source), cell.source
                assert not algorithms.search(cell.source), cell.source
                assert not re.search(r"^\s*[!%]", cell.source, re.MULTILINE), cell.source
