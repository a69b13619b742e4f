"""The real target and the shipped drafter on real prompts."""

import warnings

import pytest
import torch
from dflash.model import DFlashDraftModel as Theirs
from dflash.model import dflash_generate

from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.decoding.drafter import block_embeddings
from tevlib.decoding.generation import pooled_tau
from tevlib.decoding.load import load_target
from tevlib.sources.prompts import SUITES, chat_ids, load_prompts
from tevlib.suite.export_drafter import export_drafter
from tevlib.suite.paths import repository

pytestmark = pytest.mark.slow
SHIPPED = repository() / "data" / "drafters"


def prompts(target, n: int) -> list[list[int]]:
    return [
        chat_ids(target.tokenizer, [{"role": "user", "content": p.turns[0]}])
        for s in SUITES
        for p in load_prompts(s, n)
    ]


@pytest.fixture(scope="module")
def exact():
    target = load_target(dtype="float32", device="cpu")
    return target, load_drafter(SHIPPED / "smollm2-135m-base", target)


@pytest.fixture(scope="module")
def half():
    target = load_target(dtype="bfloat16", device="cpu")
    return target, load_drafter(SHIPPED / "smollm2-135m-base", target)


def test_shipped_drafters_are_small_and_fit_their_target(half):
    """At most 60 MB in all; loading warns of nothing; each has a card."""
    files = list(SHIPPED.rglob("*.safetensors"))
    assert files and sum(f.stat().st_size for f in files) <= 60e6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for folder in {f.parent for f in files}:
            load_drafter(folder, half[0])
            assert "1 + C_p" in (folder / "README.md").read_text()


def test_float32_greedy_equals_plain_decoding_and_transformers(exact):
    """Token for token on a prompt of every suite, for budgets of 7 and 64 and a chain."""
    target, drafter = exact
    for ids in prompts(target, 1):
        expected = autoregressive(target, ids, max_new_tokens=40).tokens
        theirs = target.model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=40, do_sample=False
        )
        assert theirs[0, len(ids) :].tolist() == expected
        for how in ({"budget": 7}, {"budget": 64}, {"builder": "chain", "budget": 7}):
            assert speculate(target, drafter, ids, max_new_tokens=40, **how).tokens == expected


def test_bfloat16_equals_plain_decoding_up_to_ties(half):
    """Where the two texts part, the target's two best logits are within 0.25 of each other (they are near 20)."""
    target, drafter = half
    for ids in prompts(target, 2):
        plain = autoregressive(target, ids, max_new_tokens=48).tokens
        tree = speculate(target, drafter, ids, budget=16, max_new_tokens=48).tokens
        first = next((i for i, (a, b) in enumerate(zip(plain, tree, strict=False)) if a != b), None)
        if first is not None:
            logits, _ = target.prefill(target.new_cache(1024), torch.tensor(ids + plain[:first]))
            top = logits.topk(2).values
            assert float(top[0] - top[1]) <= 0.25


def test_the_shipped_drafter_is_worth_its_pass(half):
    """On a prompt of every suite trees of 32 give over two tokens a round at T = 0, and meet their ceilings."""
    target, drafter = half
    made = [speculate(target, drafter, ids, budget=32, max_new_tokens=48) for ids in prompts(target, 1)]
    assert pooled_tau(made) > 2
    assert all(r.length == pytest.approx(r.ceiling, abs=1e-5) for g in made for r in g.rounds)


def test_the_dflash_package_decodes_our_text_with_the_shipped_drafters(exact, tmp_path):
    """z-lab's own code, on exports of a whole and of a rounded drafter: the same drafts of the real target's features
    to 1e-5, and at T = 0 in float32 the same text."""
    target, _ = exact
    ids = torch.tensor([prompts(target, 1)[1]])
    for name in ("smollm2-135m-opd", "smollm2-135m-exit"):
        folder = export_drafter(SHIPPED / name, tmp_path / name).folder
        theirs = Theirs.from_pretrained(folder, dtype=torch.float32).eval()
        ours = load_drafter(SHIPPED / name, target)
        with torch.inference_mode():
            _, features = target.prefill(target.new_cache(ids.shape[1]), ids[0], ours.taps)
            block = block_embeddings(target, ours, torch.tensor(11))
            got = ours.draft(ours.new_cache(400), block, features)
            positions = torch.arange(len(features) + len(block))[None]
            expected = theirs(position_ids=positions, noise_embedding=block[None], target_hidden=features[None])[0, 1:]
        assert float((got - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    text = dflash_generate(theirs, target.model, ids, 24, None)[0, ids.shape[1] :].tolist()
    assert text == speculate(target, ours, ids[0], builder="chain", max_new_tokens=24, stop=()).tokens
