"""Too little memory is said before a model is loaded."""

import pytest

from tevlib.suite import decode_cell
from tevlib.suite.decode_cell import run_decode_cell
from tevlib.suite.memory import available_bytes, check_memory, needed_bytes


def test_a_target_that_will_not_fit_is_refused(tmp_path):
    """papermill#125: an out-of-memory kill says nothing; half the weights' size free is an error with both numbers."""
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert needed_bytes(tmp_path) == 1500
    check_memory(tmp_path, 1500)
    check_memory(tmp_path, None)
    with pytest.raises(ValueError, match=r"needs about 0\.0 GB of memory, 0\.0 GB are free"):
        check_memory(tmp_path, 1499)


def test_gguf_files_are_counted_as_they_unpack(tmp_path):
    """A quantised file takes many times its size while it is converted."""
    (tmp_path / "m.gguf").write_bytes(bytes(100))
    assert needed_bytes(tmp_path / "m.gguf") == 1300


def test_the_cell_looks_before_it_loads(tiny_cell, monkeypatch):
    """The check comes before the target is loaded."""
    monkeypatch.setattr(decode_cell, "available_bytes", lambda: 10)
    monkeypatch.setattr(decode_cell, "load_target", lambda *a, **k: pytest.fail("loaded"))
    monkeypatch.setattr(decode_cell.torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="GB of memory"):
        run_decode_cell(tiny_cell())


def test_this_machine_says_something_sensible():
    """Free memory is a positive number of bytes, or unknown."""
    assert available_bytes() is None or available_bytes() > 10**6
