"""Every test runs offline, on one thread, and leaves the checkout alone. Fixtures: results, models, a browser."""

import os
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A results folder of the test's own, for this process and for the kernels and runners it starts."""
    monkeypatch.setenv("TEVLIB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder with a random `target` of four tiny layers (bytes as tokens), a random `drafter-tiny`, a `chat.jsonl`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from tevlib.decoding.checkpoint import save_drafter
    from tevlib.decoding.drafter import DFlashDraftModel
    from tevlib.decoding.load import load_target
    from tevlib.training.initialise import drafter_config

    folder = tmp_path_factory.mktemp("tiny")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=fast.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder / "target")
        fast.save_pretrained(folder / "target")
        target = load_target(folder / "target", dtype="float32")
        shape = drafter_config(target, layers=1, block_size=4, taps=(0, 2), mask_id=fast.pad_token_id)
        save_drafter(DFlashDraftModel(shape), folder / "drafter-tiny", target=target)
    (folder / "chat.jsonl").write_text('{"turns": ["Say a.", "Say b."]}\n{"turns": ["Say c."]}\n')
    return folder


@pytest.fixture
def tiny_fields(tiny, home):
    """The fields of a `Cell` on the tiny models."""
    return {
        "profile": "test", "table": "table4", "target": str(tiny / "target"), "role": "original",
        "drafter": str(tiny / "drafter-tiny"), "builder": "best_first", "verifier": "tev", "budget": 6,
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "suite": str(tiny / "chat.jsonl"), "prompts": None,
        "max_new_tokens": 12, "dtype": "float32", "seed": 0, "repeats": 1,
    }  # fmt: skip


@pytest.fixture
def tiny_cell(tiny_fields):
    """A function: a `Cell` on the tiny models with the given fields changed."""
    from tevlib.suite.cells import Cell

    return lambda **changed: Cell(**tiny_fields | changed)


@pytest.fixture
def write_notebook(tmp_path):
    """A function: write a notebook of the given code cells, a parameters cell first, and return its path."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    def write(*cells, parameters="a: int = 1  # a number\n", name="throw away.ipynb", kernel="python3"):
        notebook = new_notebook(metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}})
        if parameters is not None:
            notebook.cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
        notebook.cells += [new_code_cell(source) for source in cells]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        return path

    return write


@pytest.fixture
def record_of():
    """The function `synthetic_record`: a finished record's body for a cell."""
    from tests.synthetic import synthetic_record

    return synthetic_record


@pytest.fixture(scope="session")
def reported(tiny, tmp_path_factory):
    """A results folder with a finished profile of all five tables on the tiny models, and the path of that profile.

    Real records of real decoding; the suite's file name is hostile to HTML.
    """
    from tests.tiny_profile import write_tiny_profile
    from tevlib.suite.batch import run_cells
    from tevlib.suite.decode_cell import run_decode_cells
    from tevlib.suite.profile import LATENCY_TABLE, load_profile
    from tevlib.suite.verifier_cell import run_verifier_cells

    home = tmp_path_factory.mktemp("reported")
    profile = write_tiny_profile(home, tiny)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEVLIB_HOME", str(home))
        doers = {True: run_verifier_cells, False: run_decode_cells}
        done = run_cells(
            load_profile(str(profile)), run=lambda cells, output: doers[cells[0].table == LATENCY_TABLE](cells)
        )
    assert not done.failures, done.failures
    return home, str(profile)


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium; where there is none the tests that need it say what to install."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        missing = "no Chromium found: install one (Debian: apt-get install chromium), the explorer is tested in it"
        (pytest.fail if os.environ.get("TEVLIB_BROWSER") == "required" else pytest.skip)(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()
