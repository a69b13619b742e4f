"""Prompt lookup by transformers' generate: plain decoding's text, passes that happened, and the law of its chains."""

import time

import pytest
import torch

from tests.tiny import CONFIGS, make_target
from tevlib.decoding.decode import autoregressive
from tevlib.decoding.prompt_lookup import prompt_lookup
from tevlib.suite.decode_rows import response_row
from tevlib.suite.metrics import summarise
from tevlib.trees.exit_law import exit_law

REPEATING = [7, 8, 9, 10] * 5  # there is always something to look up


@pytest.fixture(scope="module")
def target():
    return make_target()


@pytest.mark.parametrize(("limit", "stopped"), [(40, False), (7, False), (40, True)])
def test_greedy_answers_are_plain_decoding_s(target, limit, stopped):
    """In float32 at T = 0 the tokens and the reason to end are plain decoding's; a stop or the limit may lie inside a
    block, which still counts in full while the output is cut."""
    plain = autoregressive(target, REPEATING, max_new_tokens=limit, stop=())
    stop = {plain.tokens[20]} if stopped else ()
    plain = autoregressive(target, REPEATING, max_new_tokens=limit, stop=stop)
    found = prompt_lookup(target, REPEATING, max_new_tokens=limit, stop=stop)
    assert (found.tokens, found.stop_reason) == (plain.tokens, plain.stop_reason)
    first = len(found.tokens) - sum(r.emitted for r in found.rounds)
    assert first >= 1 and all(r.emitted <= r.length for r in found.rounds)
    assert all(r.length == pytest.approx(r.ceiling) for r in found.rounds), "at T = 0 a block is its ceiling"


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_s_greedy_text_is_plain_decoding_s(family):
    """transformers rolls back its own caches, sliding layers past their window too; soft-caps and stop ids are the
    model's: the text is ours, and a block at T = 0 is as long as its ceiling."""
    target = make_target(family)
    found = prompt_lookup(target, REPEATING, max_new_tokens=32)
    assert found.tokens == autoregressive(target, REPEATING, max_new_tokens=32).tokens
    assert all(r.length == pytest.approx(r.ceiling) for r in found.rounds)


def test_rounds_are_the_target_s_passes(target):
    """tau is tokens over passes: as many rounds as forward passes behind the prefill, each with the chain it looked at,
    and at least one of them longer than one token."""
    seen = []
    hook = target.model.register_forward_pre_hook(
        lambda _m, _a, named: seen.append(named["input_ids"][0].tolist()), with_kwargs=True
    )
    found = prompt_lookup(target, REPEATING, max_new_tokens=40, stop=(), budget=4)
    hook.remove()
    assert [r.tree.tokens.tolist() for r in found.rounds] == seen[1:]
    assert all(len(r.tree) <= 5 for r in found.rounds) and max(r.length for r in found.rounds) > 1
    text = REPEATING + found.tokens
    assert seen[1][0] == text[len(text) - sum(r.emitted for r in found.rounds) - 1], "the root is the last token known"


def test_samples_follow_the_law_and_their_seed(target):
    """At T = 1 block lengths are what the chains' own ceilings predict (Theorem 1); a seed gives its tokens again and
    leaves torch's stream where it was; filters hold for every token."""
    flat = make_target(vocab_size=8, seed=3)
    rows = []
    for seed in range(40):
        found = prompt_lookup(flat, [4, 5, 6, 7] * 3, temperature=1.0, max_new_tokens=24, stop=(), seed=seed, budget=3)
        rows.append(response_row(found, found, {}) | {"id": str(seed)})
    metrics = summarise(rows, resamples=10)
    assert metrics["tau_pooled"] > 1.1 and abs(metrics["audit_z"]) < 4
    state = torch.random.get_rng_state()
    one, two, three = (
        prompt_lookup(target, REPEATING, temperature=1.0, max_new_tokens=12, stop=(), seed=s).tokens for s in (1, 1, 2)
    )
    assert one == two != three and torch.equal(state, torch.random.get_rng_state())
    greedy = prompt_lookup(target, REPEATING, max_new_tokens=12, stop=())
    assert (
        prompt_lookup(target, REPEATING, temperature=1.0, top_k=1, max_new_tokens=12, stop=()).tokens == greedy.tokens
    )


def test_a_checkpoint_s_generation_config_is_not_asked(target, monkeypatch):
    """A repetition penalty or a stop id that the checkpoint carries changes nothing, and is still there afterwards."""
    before = prompt_lookup(target, REPEATING, max_new_tokens=20, stop=()).tokens
    config = target.model.generation_config
    monkeypatch.setattr(config, "repetition_penalty", 5.0)
    monkeypatch.setattr(config, "eos_token_id", before[3])
    assert prompt_lookup(target, REPEATING, max_new_tokens=20, stop=()).tokens == before
    assert target.model.generation_config is config


def test_bad_requests_are_named(target):
    """No look ahead, an empty prompt, a prompt longer than the context: an error before any pass."""
    with pytest.raises(ValueError, match="1 token or more ahead, got budget 0"):
        prompt_lookup(target, REPEATING, budget=0)
    with pytest.raises(ValueError, match="non-empty"):
        prompt_lookup(target, [])
    with pytest.raises(ValueError, match="context holds 512"):
        prompt_lookup(target, [5] * 513)
    with pytest.raises(ValueError, match="seed must be an integer"):
        prompt_lookup(target, REPEATING, seed="1")
    assert prompt_lookup(target, REPEATING, max_new_tokens=0).tokens == []


def test_ceilings_are_those_of_the_filtered_law(target):
    """With top-k 1 a law has one token, so that a chain's ceiling is exactly what the round gave."""
    got = prompt_lookup(target, REPEATING, temperature=1.0, top_k=1, max_new_tokens=30, stop=(), seed=0)
    assert got.rounds and all(r.ceiling == pytest.approx(r.length) for r in got.rounds)


def test_the_books_are_kept_outside_the_clock(target, monkeypatch):
    """A slow exit law makes no round slower."""

    def slow(*arguments):
        time.sleep(0.5)
        return exit_law(*arguments)

    monkeypatch.setattr("tevlib.decoding.prompt_lookup.exit_law", slow)
    got = prompt_lookup(target, REPEATING, max_new_tokens=4, stop=())
    assert got.rounds and min(r.times["verify"] for r in got.rounds) < 0.5
