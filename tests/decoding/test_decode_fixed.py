"""Rounds of fixed shape: the tokens and records of `speculate`, from stages that never look at a value."""

import math
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.tiny import AimedDrafter, make_drafter, make_target
from tevlib.decoding import cycle as cycle_module
from tevlib.decoding.cycle import Cycle
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.decoding.decode_fixed import decode_fixed
from tevlib.decoding.target import Target
from tevlib.trees.exit_law import exit_law
from tevlib.trees.rows import as_rows
from tevlib.trees.verifiers import VERIFIERS, draw_exit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trees"))
from host_reads import HostReads
from tree_reference import chi_square_p

PROMPT = [7, 30, 41, 9, 77, 12, 100]
NEVER = frozenset({-1})


@pytest.fixture
def aimed(monkeypatch):
    """Makes drafters that point at a text, for `speculate` and for rounds of fixed shape alike."""
    real, tables = cycle_module.draft_block, {}

    def draft_block(drafter, cache, *rest):
        states = real(drafter, cache, *rest)
        if not isinstance(drafter, AimedDrafter):
            return states
        if drafter not in tables:
            tables[drafter] = drafter._aimed(0, 160)  # row r is the state at position r + 1
        return tables[drafter].index_select(0, cache.length + torch.arange(len(states))).to(states.dtype)

    monkeypatch.setattr(cycle_module, "draft_block", draft_block)

    def make(target, prompt=PROMPT, n=64, decoy=lambda position: 1.2 * (position % 3 == 0), block_size=8):
        text = prompt + autoregressive(target, prompt, max_new_tokens=n, stop=NEVER).tokens
        drafter = AimedDrafter(make_drafter(target, block_size=block_size).config).to(target.dtype).eval()
        return drafter.aim(target, text, decoy)

    return make


def assert_same(got, expected):
    """Tokens, reason, trees, paths and bonuses are equal, P and w to rounding."""
    assert got.tokens == expected.tokens and got.stop_reason == expected.stop_reason
    assert [(r.path, r.bonus, r.emitted) for r in got.rounds] == [(r.path, r.bonus, r.emitted) for r in expected.rounds]
    for mine, theirs in zip(got.rounds, expected.rounds, strict=True):
        assert mine.tree.tokens.equal(theirs.tree.tokens) and mine.tree.parents.equal(theirs.tree.parents)
        torch.testing.assert_close(mine.P, theirs.P, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(mine.w, theirs.w, atol=2e-5, rtol=1e-4)
        assert mine.coverage == pytest.approx(theirs.coverage, abs=1e-4)
        assert set(mine.times) == set(Cycle.STAGES)


@pytest.mark.parametrize("budget", [1, 7, 32])
def test_greedy_tokens_are_those_of_speculate(target, aimed, budget):
    """At T = 0 in float32, token for token and round for round, drafters random and aimed at side branches too."""
    for drafter in (make_drafter(target), aimed(target)):
        settings = dict(budget=budget, max_new_tokens=30, stop=NEVER)
        assert_same(decode_fixed(target, drafter, PROMPT, **settings), speculate(target, drafter, PROMPT, **settings))


def test_the_attention_of_a_gpu(aimed):
    """With the attention that a target has on a GPU: the same tokens, and nothing of it reads a value either."""
    target = make_target("qwen3")
    target.model.set_attn_implementation("sdpa")
    target = Target(target.model, target.tokenizer, target.info)
    drafter = aimed(target)
    settings = dict(budget=16, max_new_tokens=30, stop=NEVER)
    cycle = Cycle(target, drafter, 16, 64, 40)
    got = decode_fixed(target, drafter, PROMPT, cycle=cycle, **settings)
    assert_same(got, speculate(target, drafter, PROMPT, **settings))
    with HostReads(refuse=True):
        cycle.round()


@pytest.mark.parametrize("budget", [1, 7, 32])
def test_stop_tokens_inside_a_block(llama, aimed, budget):
    """The stop test on the device cuts a block where the host's would, a stop that is outside the vocabulary never."""
    free = autoregressive(llama, PROMPT, max_new_tokens=30, stop=NEVER).tokens
    drafter = aimed(llama, decoy=lambda p: 0)
    for place in (0, 1, 4, 5, 11):
        streamed = []
        settings = dict(budget=budget, max_new_tokens=30, stop={free[place], 99999})
        got = decode_fixed(llama, drafter, PROMPT, on_tokens=streamed.extend, **settings)
        assert_same(got, speculate(llama, drafter, PROMPT, **settings))
        assert got.stop_reason == "stop" and streamed == got.tokens


@pytest.mark.parametrize("n", [0, 1, 2, 5, 9, 16])
def test_max_new_tokens_is_exact(llama, aimed, n):
    """Nothing overshoots, and no round runs where none is needed."""
    drafter = aimed(llama, decoy=lambda p: 0)
    settings = dict(budget=7, max_new_tokens=n, stop=NEVER)
    assert_same(decode_fixed(llama, drafter, PROMPT, **settings), speculate(llama, drafter, PROMPT, **settings))


@pytest.mark.parametrize("room", [1, 2, 3, 9, 20])
@pytest.mark.parametrize("budget", [1, 32])
def test_context_end(aimed, room, budget):
    """Near the context's end the block shrinks as in `speculate`: no node beyond the limit, the same last tokens."""
    target = make_target(max_position_embeddings=40)
    prompt = (PROMPT * 6)[: 40 - room]
    for drafter in (make_drafter(target), aimed(target, prompt)):
        settings = dict(budget=budget, max_new_tokens=60, stop=NEVER)
        got = decode_fixed(target, drafter, prompt, **settings)
        assert_same(got, speculate(target, drafter, prompt, **settings))
        assert got.stop_reason == "context" and len(got.tokens) == room


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(0.6, 1.0, 0), (1.0, 0.8, 0), (0.8, 0.9, 8)])
@pytest.mark.parametrize("budget", [7, 32])
def test_sampled_rounds_are_those_of_speculate(monkeypatch, temperature, top_p, top_k, budget):
    """From the same uniforms the same exits, bonuses and records as an exit and a bonus draw, filters included."""

    def two_draws(tree, rows, temperature, generator):
        return draw_exit(exit_law(tree, as_rows(rows).all(), temperature), generator)

    monkeypatch.setitem(VERIFIERS, "tev", two_draws)
    target = make_target(vocab_size=12)
    drafter = make_drafter(target)
    for seed in range(2):
        settings = dict(budget=budget, temperature=temperature, top_p=top_p, top_k=top_k, max_new_tokens=24)
        settings |= dict(stop=NEVER, seed=seed)
        got = decode_fixed(target, drafter, [7, 9, 4], **settings)
        assert_same(got, speculate(target, drafter, [7, 9, 4], **settings))
        assert any(r.length > 1 for r in got.rounds)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.5, 1.0), (3.0, 0.9)])
def test_exit_and_bonus_follow_the_exit_law(temperature, top_p):
    """Many decisions of one round: exits and bonuses follow w(v) p_res(a) of the tree and its rows (chi-square)."""
    target = make_target(vocab_size=12)
    cycle = Cycle(target, make_drafter(target), 7, 40, 4000, temperature, top_p)
    with torch.inference_mode():
        cycle.begin(torch.tensor([7, 9, 4]))
        cycle.start(9, 30, NEVER, torch.Generator().manual_seed(1))
        for stage in ("draft", "build", "verify"):
            cycle.stages[stage]()
        counts = Counter()
        for _ in range(n := 4000):
            cycle.stages["decide"]()
            counts[int(cycle.drawn.node), int(cycle.drawn.bonus)] += 1
            cycle.number.add_(1)
        tree = cycle.tree.tree()
        law = exit_law(tree, cycle.logits[: len(tree)], temperature)
        joint = {(v, a): float(law.w[v] * p) for v in range(len(tree)) for a, p in enumerate(law.residual(v))}
    assert all(joint[cell] > 0 for cell in counts)
    common = {cell for cell, p in joint.items() if n * p >= 5}
    assert len(common) >= 8
    seen = Counter({cell: count for cell, count in counts.items() if cell in common})
    seen["rare"] = n - seen.total()
    expected = {cell: joint[cell] for cell in common}
    expected["rare"] = max(1 - sum(expected.values()), 1e-9)
    assert chi_square_p(seen, expected, n) > 1e-3


def test_the_mode_that_counts_reads_sees_them():
    """What waits for a device or gives a shape that varies is refused; so is an index by a mask."""
    x = torch.arange(3.0)
    for read in (lambda: int(x[1]), lambda: bool(x.any()), lambda: x.nonzero(), lambda: x[x > 1], lambda: x[1].item()):
        with pytest.raises(AssertionError, match="waits for the device"), HostReads(refuse=True):
            read()


def test_one_read_a_round(llama, aimed):
    """Between two reports no stage reads a value or makes a shape of one; a round reads one report."""
    drafter = aimed(llama)
    for law in ((0.0, 1.0, 0), (0.7, 0.9, 20)):
        cycle = Cycle(llama, drafter, 16, 64, 40, *law)
        with torch.inference_mode():
            cycle.begin(torch.tensor(PROMPT))
            cycle.start(9, 30, NEVER, torch.Generator().manual_seed(0))
        for _ in range(4):
            with HostReads(refuse=True):
                cycle.round()
            assert cycle.read().length >= 1


def test_buffers_stay_in_place(llama, aimed):
    """No growth: after many rounds and a second request every buffer of the state is the tensor it was."""
    drafter = aimed(llama)
    cycle = Cycle(llama, drafter, 16, 64, 40)
    state = [x for x in vars(cycle).values() if isinstance(x, torch.Tensor)] + [cycle.cache.store, cycle.mask.rows]
    places = [x.data_ptr() for x in state]
    settings = dict(budget=16, max_new_tokens=30, stop=NEVER, cycle=cycle)
    first = decode_fixed(llama, drafter, PROMPT, **settings)
    other = decode_fixed(llama, drafter, PROMPT[::-1], **settings)
    assert_same(decode_fixed(llama, drafter, PROMPT, **settings), first)
    assert_same(other, speculate(llama, drafter, PROMPT[::-1], budget=16, max_new_tokens=30, stop=NEVER))
    assert places == [x.data_ptr() for x in state]


def test_a_nan_draft_drafts_nothing(llama):
    """A draft with NaN leaves the root alone and warns with the round; the tokens stay the target's own."""
    drafter = make_drafter(llama)
    with torch.no_grad():
        drafter.norm.weight.fill_(math.nan)
    with pytest.warns(UserWarning, match="round 0: the drafter's logits hold NaN"):
        got = decode_fixed(llama, drafter, PROMPT, budget=7, max_new_tokens=6, stop=NEVER)
    assert got.tokens == autoregressive(llama, PROMPT, max_new_tokens=6, stop=NEVER).tokens
    assert [len(r.tree) for r in got.rounds] == [1] * 5


def test_nan_logits_name_round_and_node(llama, monkeypatch):
    """NaN in a row that matters is an error with the round and the node, not a token."""
    drafter = make_drafter(llama)
    real = type(llama).logits

    def logits(self, hidden):
        rows = real(self, hidden)
        return torch.full_like(rows, math.nan) if hidden.shape == (8, 32) else rows

    monkeypatch.setattr(type(llama), "logits", logits)
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="round 0: the target's logits are unusable: node 0 has a NaN logit"):
            decode_fixed(llama, drafter, PROMPT, budget=7, temperature=temperature, max_new_tokens=6)


def test_a_request_with_nan_leaves_nothing_behind(llama):
    """A store that a request has filled with NaN, behind what the next one sees, does not reach the next one."""
    drafter = make_drafter(llama)
    cycle = Cycle(llama, drafter, 7, 64, 30)
    settings = dict(budget=7, max_new_tokens=12, stop=NEVER)
    with torch.inference_mode():
        for cache in (cycle.cache, cycle.context):
            cache.store.fill_(math.nan)
    got = decode_fixed(llama, drafter, PROMPT, cycle=cycle, **settings)
    assert_same(got, speculate(llama, drafter, PROMPT, **settings))


def test_what_does_not_fit_is_refused(llama):
    """A budget of 0, a cycle of another law and a request beyond its capacity are errors."""
    drafter = make_drafter(llama)
    with pytest.raises(ValueError, match="budget must be >= 1"):
        decode_fixed(llama, drafter, PROMPT, budget=0)
    cycle = Cycle(llama, drafter, 7, 20, 10)
    with pytest.raises(ValueError, match="this cycle was made for budget 7"):
        decode_fixed(llama, drafter, PROMPT, budget=7, temperature=1.0, cycle=cycle)
    with pytest.raises(ValueError, match="this cycle was made for"):
        decode_fixed(llama, drafter, PROMPT, budget=7, max_new_tokens=30, cycle=cycle)
    with pytest.raises(ValueError, match="the prompt has 21 tokens"):
        decode_fixed(llama, drafter, PROMPT * 3, budget=7, max_new_tokens=3, cycle=cycle)
