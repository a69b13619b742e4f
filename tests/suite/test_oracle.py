"""The best possible tree on rounds of a decoded answer, against counting every prefix, one plain pass each."""

import itertools

import pytest
import torch

from tests.tiny import make_drafter, make_target
from tevlib.decoding.decode import speculate
from tevlib.suite.oracle import oracle_coverages
from tevlib.training.evaluate import middles
from tevlib.trees.sampling import filter_logits, target_log_probs

DEPTH = 3


@pytest.fixture(scope="module")
def target():
    return make_target(vocab_size=9)


def best_coverage(target, context, size, **law):
    """C_p of the `size` most likely of all prefixes of at most `DEPTH` tokens after `context`: one pass per prefix."""
    reach, before = {(): 1.0}, [()]
    for _ in range(DEPTH):
        texts = torch.tensor([[*context, *prefix] for prefix in before])
        with torch.inference_mode():
            rows = target.model(texts).logits[:, -1].float()
        rows = target_log_probs(filter_logits(rows, **law), law["temperature"]).double().exp()
        for prefix, row in zip(before, rows, strict=True):
            reach |= {(*prefix, token): reach[prefix] * float(p) for token, p in enumerate(row)}
        before = list(itertools.product(range(9), repeat=len(before[0]) + 1))
    return sum(sorted((p for prefix, p in reach.items() if prefix), reverse=True)[:size])


@pytest.mark.parametrize(
    "law", [{"temperature": 1.0}, {"temperature": 0.6, "top_k": 4}, {"temperature": 1.3, "top_p": 0.8}]
)
def test_no_tree_covers_more_than_the_one_found(target, law):
    """C_p of the oracle's tree is that of the most likely prefixes, on the round's own context, filters applied."""
    drafter = make_drafter(target, block_size=DEPTH + 1)
    ids = torch.tensor([4, 6, 7, 4])
    answer = speculate(target, drafter, ids, budget=5, max_new_tokens=16, stop=[], seed=3, **law)
    found = oracle_coverages(target, ids, answer, rounds=3, depth=DEPTH, **law)
    assert list(found) == middles(len(answer.rounds), 3) and len(found) == 3
    for place, coverage in found.items():
        cycle = answer.rounds[place]
        decoded = answer.tokens[: sum(r.length for r in answer.rounds[:place]) + 1]
        assert decoded[-1] == cycle.tree.token(0)
        assert coverage == pytest.approx(best_coverage(target, [*ids.tolist(), *decoded], 5, **law), abs=1e-4)
        assert cycle.coverage <= coverage + 1e-5


def test_at_zero_temperature_the_target_s_own_continuation_is_the_best_tree(target):
    """A chain of the argmax tokens covers as many as it is deep or has nodes; no pass is made for it."""
    drafter, ids = make_drafter(target, block_size=DEPTH + 1), torch.tensor([4, 6])
    for budget, covered in ((2, 2.0), (8, 3.0)):
        answer = speculate(target, drafter, ids, budget=budget, max_new_tokens=12, stop=[])
        assert set(oracle_coverages(target, ids, answer, rounds=2, depth=DEPTH, temperature=0.0).values()) == {covered}


def test_the_context_ends_for_the_oracle_too(target, monkeypatch):
    """With room for one token behind the root no tree covers two, at T = 0 as at T > 0."""
    drafter, ids = make_drafter(target, block_size=DEPTH + 1), torch.tensor([4, 6])
    answer = speculate(target, drafter, ids, budget=8, max_new_tokens=12, stop=[])
    place = middles(len(answer.rounds), 1)[0]
    room = len(ids) + sum(r.length for r in answer.rounds[:place]) + 1
    monkeypatch.setattr(target, "context_limit", room + 1)
    assert oracle_coverages(target, ids, answer, rounds=1, depth=DEPTH, temperature=0.0) == {place: 1.0}
    assert oracle_coverages(target, ids, answer, rounds=1, depth=DEPTH, temperature=1.0)[place] <= 1


def test_rounds_without_a_draft_have_no_oracle(target):
    """The root alone has nothing that another tree could have instead; and none is looked for unasked."""
    drafter, ids = make_drafter(target), torch.tensor([4, 6])
    alone = speculate(target, drafter, ids, budget=0, temperature=1.0, max_new_tokens=6, stop=[])
    assert oracle_coverages(target, ids, alone, rounds=2, depth=DEPTH, temperature=1.0) == {}
    answer = speculate(target, drafter, ids, budget=4, temperature=1.0, max_new_tokens=6, stop=[])
    assert oracle_coverages(target, ids, answer, rounds=0, depth=DEPTH, temperature=1.0) == {}


def test_middles_are_spread_and_never_twice():
    """Middles of equal parts, in order; all places where there are fewer; none of none."""
    assert middles(9, 3) == [1, 4, 7] and middles(10, 1) == [5] and middles(2, 5) == [0, 1] and middles(0, 3) == []
