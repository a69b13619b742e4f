"""The comparison with other people's loops: same text, same count, and peers that are not there are said."""

import sys

import pytest
import torch

from benchmarks import peer_loops, peers
from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.load import load_target
from tevlib.sources.prompts import SUITES


@pytest.fixture(scope="module")
def pair(tiny):
    target = load_target(tiny / "target", dtype="float32")
    return target, load_drafter(tiny / "drafter-tiny", target)


@pytest.fixture
def saved(pair, tmp_path, monkeypatch):
    """The drafter in float32 in the published layout; prompts are made-up ids."""
    target, drafter = pair
    monkeypatch.setattr(
        peers, "prompt_ids", lambda _, n: [(s, f"{s}/{i}", torch.arange(9, 20 + i)) for i in range(n) for s in SUITES]
    )
    return save_drafter(drafter, tmp_path / "drafter", target=target, dtype=torch.float32)


def test_every_loop_gives_the_same_text_and_dflash_our_chain_s_blocks(pair, tiny, saved):
    """In float32 at T = 0 all answers are plain decoding's. z-lab's package, its own class on our checkpoint, needs
    exactly the passes of our chain, on its model object and on ours; a row of every method and prompt is there."""
    pytest.importorskip("dflash")
    theirs, absent = peer_loops.peers(pair[0], tiny / "target", saved, None)
    assert absent == {peer_loops.DDTREE: "no --ddtree"}
    found = peers.compare(*pair, theirs, {0.0: 2, 1.0: 1}, tokens=24, budget=6)
    greedy, sampled = found["summary"].values()
    assert set(sampled) - set(greedy) == {"sampled chain, B = 3"} and len(found["rows"]) == 8 * 8 + 4 * 9
    assert {own["as_plain"] for own in greedy.values()} == {1.0}
    passes = {
        name: [row["passes"] for row in sorted(found["rows"], key=lambda row: row["prompt"])
               if row["temperature"] == 0 and row["method"] == name]
        for name in greedy
    }  # fmt: skip
    assert passes[peer_loops.DFLASH] == passes[peer_loops.DFLASH_OURS] == passes["chain, B = 3"]
    assert greedy["plain"]["tau"] == greedy[peer_loops.GENERATE]["tau"] == 1.0
    assert greedy["plain"]["speedup"]["value"] == 1.0 and all(own["tau"] >= 1 for own in sampled.values())
    record = peers.begin(True) | {"target": "tiny", "drafter": "tiny", **found}
    assert all(name in peers.table(record) for name in sampled)


CHECKOUT = {
    "model/__init__.py": "from transformers import DynamicCache\nclass DFlashDraftModel:\n    pass\n",
    "dflash.py": "def cuda_time():\n    import torch\n    torch.cuda.synchronize()\n    return 'theirs'\n",
    "ddtree.py": "from dflash import cuda_time\nfrom model import DFlashDraftModel\nddtree_generate = cuda_time\n",
}


def test_a_checkout_s_modules_are_kept_apart(tmp_path):
    """DDTree's `dflash` and `model` are found beside it and leave no trace; without a GPU its clock runs only inside
    `adapted`, where caches are cropped to a length as before transformers 5."""
    for name, text in CHECKOUT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def theirs():
        return {name: sys.modules[name] for name in sys.modules if name.split(".")[0] in ("dflash", "model", "ddtree")}

    before = theirs()
    with peer_loops.only_from(tmp_path):
        import ddtree
    after = {
        name: module for name, module in sys.modules.items() if name.split(".")[0] in ("dflash", "model", "ddtree")
    }
    assert after == before and str(tmp_path) not in sys.path
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            ddtree.ddtree_generate()
    cache = peer_loops.DynamicCache()
    cache.update(torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 5, 2), 0)
    with pytest.raises(ValueError, match="negative integer"):
        cache.crop(3)
    with peer_loops.adapted():
        assert ddtree.ddtree_generate() == "theirs"
        cache.crop(3)
        cache.crop(-1)
    assert cache.get_seq_length() == 2


def test_absent_peers_are_said_and_not_fatal(pair, tiny, saved, tmp_path, monkeypatch):
    """Without the package, and with a folder that is no checkout, transformers is left to compare with."""
    monkeypatch.setitem(sys.modules, "dflash.model", None)
    theirs, absent = peer_loops.peers(pair[0], tiny / "target", saved, tmp_path)
    assert list(theirs) == [peer_loops.GENERATE]
    assert "pip install --no-deps dflash==0.1.0" in absent[peer_loops.DFLASH]
    assert "No module named 'ddtree'" in absent[peer_loops.DDTREE]
