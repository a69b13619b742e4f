"""The decode loop: exact output, exact length, honest records."""

import math
import time
import warnings
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from tests.tiny import PLAIN, AimedDrafter, make_drafter, make_target
from tevlib.decoding.clock import Clock
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.decoding.generation import Generation, Round, pooled_tau, tau_of_responses
from tevlib.decoding.request import Output
from tevlib.trees.builders import BUILDERS
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.verifiers import VERIFIERS, Verdict

PROMPT = [7, 30, 41, 9, 77, 12, 100]
NEVER = frozenset({-1})  # a stop set that no token is in


def aimed(target, prompt=PROMPT, n=64, decoy=lambda position: 1.2 * (position % 3 == 0), block_size=8):
    """A drafter that proposes the target's own greedy text, at ranks that put it on side branches too."""
    text = prompt + autoregressive(target, prompt, max_new_tokens=n, stop=NEVER).tokens
    drafter = AimedDrafter(make_drafter(target, block_size=block_size).config).to(target.dtype).eval()
    return drafter.aim(target, text, decoy)


@pytest.mark.parametrize("builder", [*BUILDERS, "sampled_chain"])
@pytest.mark.parametrize("budget", [0, 1, 7, 64])
def test_greedy_output_is_the_autoregressive_one(target, builder, budget):
    """At T = 0 in float32, token for token, whatever the drafter says and wherever the right token hangs."""
    expected = autoregressive(target, PROMPT, max_new_tokens=30, stop=NEVER).tokens
    for drafter in (make_drafter(target), aimed(target)):
        got = speculate(target, drafter, PROMPT, builder=builder, budget=budget, max_new_tokens=30, stop=NEVER)
        assert got.tokens == expected
        assert sum(r.emitted for r in got.rounds) + 1 == len(got.tokens)
        if budget == 0:
            assert got.tau == 1.0


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_every_verifier_is_greedy_at_zero(llama, verifier):
    """One threshold: all verifiers give the same rounds at T = 0, and below the threshold."""
    drafter = aimed(llama)
    rounds = [
        [r.path for r in speculate(llama, drafter, PROMPT, verifier=v, temperature=t, max_new_tokens=30).rounds]
        for v, t in (("greedy", 0.0), (verifier, 0.0), (verifier, 1e-8))
    ]
    assert rounds[0] == rounds[1] == rounds[2]
    assert any(len(path) > 2 for path in rounds[0])


@pytest.mark.parametrize("family", PLAIN)
@pytest.mark.parametrize("length", [1, 6, 30])
def test_autoregressive_equals_transformers_generate(family, length):
    """`generate(do_sample=False)` of transformers, end token included."""
    target = make_target(family)
    prompt = torch.randint(4, 128, (1, length), generator=torch.Generator().manual_seed(length))
    theirs = target.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False, pad_token_id=3
    )
    assert autoregressive(target, prompt[0], max_new_tokens=40).tokens == theirs[0, length:].tolist()


def test_an_oracle_is_accepted_whole(llama):
    """A drafter that knows the text fills every block: acceptance is block - 1 in the real loop (SpecForge#473)."""
    got = speculate(
        llama, aimed(llama, decoy=lambda p: 0), PROMPT, builder="chain", budget=7, max_new_tokens=33, stop=NEVER
    )
    assert [r.length for r in got.rounds] == [8, 8, 8, 8]
    assert got.tau == got.ceiling == 8.0


def test_records_describe_their_round(llama):
    """P, w and C_p belong to the tree of the round; the path is a path of it; the ceiling is attained at T = 0."""
    got = speculate(llama, aimed(llama), PROMPT, budget=16, max_new_tokens=40, stop=NEVER)
    for r in got.rounds:
        assert abs(float(r.w.sum()) - 1) < 1e-6 and abs(float(r.P[1:].sum()) - r.coverage) < 1e-6
        assert r.tree.node_path(r.path[-1]) == r.path and r.length == r.ceiling
        assert set(r.times) == {"draft", "build", "verify", "decide", "commit"}
    assert got.decode_s >= sum(got.stage_s.values()) > 0


def test_stop_token_inside_a_block_ends_the_output(llama):
    """Tokens behind an accepted end token are not emitted, not streamed, and not in the counts (transformers#47912)."""
    free = autoregressive(llama, PROMPT, max_new_tokens=30, stop=NEVER).tokens
    for place in (1, 4, 5, 11):
        stop = {free[place]}
        first = free.index(free[place])
        streamed = []
        got = speculate(
            llama,
            aimed(llama, decoy=lambda p: 0),
            PROMPT,
            budget=7,
            max_new_tokens=30,
            stop=stop,
            on_tokens=streamed.extend,
        )
        assert (
            got.tokens
            == free[: first + 1]
            == streamed
            == autoregressive(llama, PROMPT, max_new_tokens=30, stop=stop).tokens
        )
        assert got.stop_reason == "stop"
        assert sum(r.emitted for r in got.rounds) == len(got.tokens) - 1
        assert all(r.length >= r.emitted for r in got.rounds)


def test_a_stop_token_behind_the_limit_is_no_stop():
    """A block cut at max_new_tokens before its end token ends by length: what was not emitted stopped nothing."""
    out = Output(2, "length", frozenset({9}), None)
    assert out.emit([1, 2, 9]) == 2 and out.tokens == [1, 2]
    assert out.generation([], 0.0, 0.0).stop_reason == "length"


@pytest.mark.parametrize("n", [0, 1, 2, 5, 9])
def test_max_new_tokens_is_exact(llama, n):
    """0 means no pass at all, 1 no draft round; nothing overshoots (transformers#28555)."""
    got = speculate(llama, aimed(llama, decoy=lambda p: 0), PROMPT, budget=7, max_new_tokens=n, stop=NEVER)
    assert got.tokens == autoregressive(llama, PROMPT, max_new_tokens=n, stop=NEVER).tokens and len(got.tokens) == n
    assert got.stop_reason == "length"
    if n < 2:
        assert got.rounds == [] and got.tau is None and got.ceiling is None


def test_first_token_may_be_the_end(llama):
    """An end token straight from the prefill stops at once, without a round and without a NaN."""
    first = autoregressive(llama, PROMPT, max_new_tokens=1).tokens[0]
    got = speculate(llama, make_drafter(llama), PROMPT, max_new_tokens=30, stop={first})
    assert got.tokens == [first] and got.rounds == [] and got.stop_reason == "stop"


def test_tokens_equal_to_the_mask_are_kept():
    """Output is cut by position, never by value: real mask tokens stay (dflash#73)."""
    target = make_target()
    free = autoregressive(target, PROMPT, max_new_tokens=20, stop=NEVER).tokens
    drafter = make_drafter(target, mask_id=free[3])
    prompt = [11, free[3], 13]
    for text in (PROMPT, prompt):
        expected = autoregressive(target, text, max_new_tokens=20, stop=NEVER).tokens
        assert speculate(target, drafter, text, max_new_tokens=20, stop=NEVER).tokens == expected


@pytest.mark.parametrize(("target_limit", "drafter_limit"), [(64, 48), (48, 64), (50, 50)])
def test_the_block_shrinks_at_the_context_limit(target_limit, drafter_limit):
    """Look-ahead never passes the limit of target or drafter (exllamav2#274); the text ends at the target's."""
    target = make_target(max_position_embeddings=target_limit)
    drafter = make_drafter(target, block_size=16)
    drafter.config.max_position_embeddings = drafter_limit
    prompt = torch.randint(4, 128, (45,), generator=torch.Generator().manual_seed(0)).tolist()
    got = speculate(target, drafter, prompt, budget=32, max_new_tokens=30, stop=NEVER)
    assert got.tokens == autoregressive(target, prompt, max_new_tokens=30, stop=NEVER).tokens
    assert len(got.tokens) == min(30, target_limit - 45)
    assert got.stop_reason == ("context" if target_limit - 45 < 30 else "length")


def test_drafter_keeps_nothing_of_its_blocks(llama):
    """After a round the drafter's cache depends on the accepted text only (dflash#15)."""
    drafter = make_drafter(llama)
    features = torch.randn(9, 64)
    kept = []
    for noise in (0, 1):
        cache = drafter.new_cache(32)
        drafter.append_context(cache, features[:5])
        drafter.draft(cache, torch.full((8, 32), float(noise)))
        drafter.append_context(cache, features[5:])
        assert cache.length == 9
        kept.append(cache.store[..., :9, :].clone())
    assert torch.equal(*kept)


@pytest.mark.parametrize("new", [0, 1, 3])
def test_a_draft_may_bring_its_context_along(llama, new):
    """New features in the draft's own pass: the same rows and the same context as appending them first."""
    drafter = make_drafter(llama)
    features, block = torch.randn(9, 64), torch.randn(8, 32)
    apart, together = drafter.new_cache(32), drafter.new_cache(32)
    drafter.append_context(apart, features)
    drafter.append_context(together, features[: 9 - new])
    expected, got = drafter.draft(apart, block), drafter.draft(together, block, features[9 - new :])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert together.length == apart.length == 9
    torch.testing.assert_close(together.store[..., :9, :], apart.store[..., :9, :], atol=1e-5, rtol=1e-5)


def test_block_of_one_or_two(llama):
    """block_size 1 is plain decoding; 2 proposes one token."""
    expected = autoregressive(llama, PROMPT, max_new_tokens=12, stop=NEVER).tokens
    for block_size, most in ((1, 1), (2, 2)):
        got = speculate(llama, make_drafter(llama, block_size=block_size), PROMPT, max_new_tokens=12, stop=NEVER)
        assert got.tokens == expected and max(r.length for r in got.rounds) <= most


def test_a_nan_draft_drafts_nothing(llama):
    """A drafter gone NaN costs speed, says so, and never touches the text (vllm#41834)."""
    drafter = make_drafter(llama)
    with torch.no_grad():
        drafter.norm.weight.fill_(math.nan)
    with pytest.warns(UserWarning, match=r"round 0: the drafter's logits hold NaN"):
        got = speculate(llama, drafter, PROMPT, max_new_tokens=10, stop=NEVER)
    assert got.tokens == autoregressive(llama, PROMPT, max_new_tokens=10, stop=NEVER).tokens and got.tau == 1.0


def test_a_nan_target_names_round_and_node(llama):
    """NaN from the target is an error with the place in it, not token 0."""
    drafter = make_drafter(llama)
    original, poisoned = llama.pass_tree, []

    def second_pass_is_poisoned(cache, tree, taps):
        hidden, features = original(cache, tree, taps)
        poisoned.append(tree.internal[-1])
        if len(poisoned) == 2:
            hidden[poisoned[-1]] = math.nan
        return hidden, features

    llama.pass_tree = second_pass_is_poisoned
    with pytest.raises(ValueError) as raised:
        speculate(llama, drafter, PROMPT, budget=8, temperature=1.0, seed=0, max_new_tokens=30, stop=NEVER)
    assert f"round 1: the target's logits are unusable: node {poisoned[1]} has" in str(raised.value)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_seed_decides_and_no_seed_does_not(llama, temperature):
    """Same seed, same tokens, whatever ran before; without a seed samples differ (vllm#6038, TensorRT-LLM#19487)."""
    drafter = make_drafter(llama)
    run = lambda seed: tuple(  # noqa: E731
        speculate(llama, drafter, PROMPT, temperature=temperature, seed=seed, max_new_tokens=12, stop=NEVER).tokens
    )
    first = run(3)
    speculate(llama, drafter, PROMPT[:3], temperature=1.0, seed=9, max_new_tokens=5)
    assert run(3) == first
    samples = {run(None) for _ in range(8)}
    assert len(samples) == 1 if temperature == 0 else len(samples) > 1


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.6}])
@pytest.mark.parametrize("verifier", ["predraw", "sequential_residual", "tev", "sampled_chain"])
def test_two_tokens_follow_the_filtered_law(filters, verifier):
    """Over two rounds, sampled tokens have the autoregressive law of the same filters: chi-square over fixed seeds."""
    target = make_target(vocab_size=8, hidden_size=16, num_hidden_layers=2)
    drafter = make_drafter(target, block_size=3, layers=1, taps=(0,), mask_id=5)
    how = {"builder": verifier} if verifier == "sampled_chain" else {"verifier": verifier}
    n = 300
    counts = Counter(
        tuple(
            speculate(
                target,
                drafter,
                [4, 6],
                budget=3,
                temperature=1.0,
                max_new_tokens=3,
                stop=NEVER,
                seed=seed,
                **how,
                **filters,
            ).tokens
        )
        for seed in range(n)
    )
    from tevlib.trees.sampling import filter_logits, target_probs

    law: dict[tuple, float] = {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, mass in law.items():
            logits, _features = target.prefill(target.new_cache(8), torch.tensor([4, 6, *text]))
            for token, p in enumerate(target_probs(filter_logits(logits, 1.0, **filters), 1.0).tolist()):
                if p > 0:
                    longer[(*text, token)] = mass * p
        law = longer
    assert set(counts) <= set(law)
    common = {text for text, mass in law.items() if mass * n >= 5}
    observed = [counts[text] for text in common] + [n - sum(counts[text] for text in common)]
    expected = [law[text] * n for text in common] + [n * (1 - sum(law[text] for text in common))]
    if expected[-1] < 1e-6:
        observed, expected = observed[:-1], expected[:-1]
    assert chisquare(observed, [e * sum(observed) / sum(expected) for e in expected]).pvalue > 1e-3


def test_bfloat16_differs_only_at_ties():
    """In bfloat16 the first difference from plain decoding has a top-2 margin within rounding (vllm#54928)."""
    target = make_target("llama", dtype=torch.bfloat16)
    drafter = make_drafter(target)
    for seed in range(10):
        prompt = torch.randint(4, 128, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
        plain = autoregressive(target, prompt, max_new_tokens=48, stop=NEVER).tokens
        tree = speculate(target, drafter, prompt, budget=16, max_new_tokens=48, stop=NEVER).tokens
        first = next((i for i, (a, b) in enumerate(zip(plain, tree, strict=True)) if a != b), None)
        if first is not None:
            logits, _ = target.prefill(target.new_cache(80), torch.tensor(prompt + plain[:first]))
            top = logits.topk(2).values
            assert float(top[0] - top[1]) < 0.05 * float(logits.std()), f"prompt {seed}, token {first}"


@pytest.mark.parametrize("prompt", [[5], [0], [0, 0, 0], [3] * 4])
def test_odd_prompts_are_decoded(llama, prompt):
    """One token, only special tokens, only the mask: a defined result (never an index error in the drafter)."""
    expected = autoregressive(llama, prompt, max_new_tokens=8, stop=NEVER).tokens
    assert speculate(llama, make_drafter(llama), prompt, max_new_tokens=8, stop=NEVER).tokens == expected


def test_a_verifier_of_ones_own(llama):
    """A function of the verifiers' kind is used as they are, and is asked once a round."""
    calls = []

    def own(*arguments):
        calls.append(arguments)
        return VERIFIERS["tev"](*arguments)

    how = {"temperature": 1.0, "seed": 4, "max_new_tokens": 20, "stop": NEVER}
    named, given = (speculate(llama, make_drafter(llama), [5, 9], verifier=v, **how) for v in ("tev", own))
    assert given.tokens == named.tokens and len(calls) == len(given.rounds)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (None, "one of the tree's 5 nodes, got None"),
        (Verdict(9, [0, 9], 3), "one of the tree's 5 nodes, got Verdict"),
        (Verdict(0, [0, 1], 3), r"the path to node 0 is \[0\], got"),
        (Verdict(0, [0], 500), r"the bonus is a token in 0\.\.\d+, got"),
    ],
)
def test_a_verdict_that_the_tree_does_not_allow(llama, verdict, words):
    """A verifier of one's own that returns nonsense is told what, before anything is committed."""
    with pytest.raises(ValueError, match=words):
        speculate(llama, make_drafter(llama), [5, 9], budget=4, verifier=lambda *_: verdict, stop=NEVER)


BAD = [
    ({"verifier": VERIFIERS["greedy"], "temperature": 1.0}, "greedy verifier is exact at temperature 0 only"),
    ({"budget": -1}, "budget must be >= 0"),
    ({"builder": "best"}, "unknown builder 'best': choose one of best_first"),
    ({"verifier": "tve"}, "unknown verifier 'tve': choose one of greedy"),
    ({"temperature": -0.5}, "temperature must be a finite number >= 0"),
    ({"temperature": math.nan}, "temperature must be a finite number >= 0"),
    ({"top_p": 0.0}, "top_p must be in"),
    ({"top_k": -1}, "top_k must be >= 0"),
    ({"max_new_tokens": -1}, "max_new_tokens must be >= 0"),
    ({"max_new_tokens": 3.5}, "max_new_tokens must be an integer >= 0; got 3.5"),
    ({"budget": 2.5}, "budget must be an integer >= 0; got 2.5"),
    ({"budget": True}, "budget must be an integer >= 0; got True"),
    ({"top_k": 2.5, "temperature": 1.0}, "top_k must be an integer >= 0; got 2.5"),
    ({"temperature": "0.5"}, "temperature must be a finite number >= 0; got '0.5'"),
    ({"verifier": "greedy", "temperature": 1.0}, "greedy verifier is exact at temperature 0 only"),
    ({"verifier": "greedy", "temperature": 1.0, "builder": "sampled_chain"}, "greedy verifier is exact"),
    ({"input_ids": []}, "non-empty"),
    ({"input_ids": [5, 500]}, "token ids must be in"),
    ({"input_ids": [4.0, 6.5]}, "input_ids must be whole numbers, got torch.float32"),
    ({"stop": ["</s>"]}, "stop takes token ids, got '</s>'"),
    ({"stop": 5}, r"stop takes token ids, such as \[5\], got 5"),
    ({"top_p": "0.9"}, r"top_p must be in \(0, 1\]; got '0.9'"),
    ({"seed": 1.5}, "seed must be an integer of at most 64 bits, .* got 1.5"),
    ({"seed": 2**64}, "seed must be an integer of at most 64 bits"),
    ({"input_ids": "once"}, "a text's are tokenizer.encode.text.; got 'once'"),
    ({"input_ids": None}, "got None"),
    ({"input_ids": [5] * 513}, "513 tokens, the target's context holds 512"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_refused_before_any_pass(llama, arguments, message):
    """Every bad argument is a ValueError with its value, and the model is not called."""
    llama.forward = None
    with pytest.raises(ValueError, match=message):
        speculate(llama, make_drafter(llama), **{"input_ids": PROMPT} | arguments)


def made_up(lengths: list[int], coverages: list[float] | None = None) -> Generation:
    """A response with rounds of the given block lengths."""
    rounds = []
    for i, length in enumerate(lengths):
        tree = DraftTree(list(range(length)), list(range(-1, length - 1)))
        coverage = coverages[i] if coverages else 0.0
        rounds.append(Round(tree, torch.zeros(length), torch.zeros(length), coverage, list(range(length)), 0))
    return Generation([], rounds, "length", 0.0, 0.0)


@pytest.mark.parametrize(
    ("verifier", "how"),
    [
        ("tev", {"temperature": 0.0}),
        ("sequential_residual", {"temperature": 1.0}),
        ("tev", {"temperature": 1.0, "top_p": 0.9}),
    ],
)
def test_nan_in_a_node_nobody_visits_names_the_round(llama, monkeypatch, verifier, how):
    """The filters and the exit law read rows that a verifier leaves out: their errors have the place in them too."""
    whole, broken = type(llama).pass_tree, []

    def last_internal_node_is_nan(self, cache, tree, taps):
        hidden, features = whole(self, cache, tree, taps)
        hidden[tree.internal[-1]] = math.nan
        broken.append(tree.internal[-1])
        return hidden, features

    monkeypatch.setattr(type(llama), "pass_tree", last_internal_node_is_nan)
    with pytest.raises(ValueError, match=r"round 0: the target's logits are unusable: node \d+ has a NaN") as raised:
        speculate(llama, make_drafter(llama), PROMPT, budget=20, verifier=verifier, seed=0, max_new_tokens=9, **how)
    assert f"node {broken[0]} has" in str(raised.value)


def test_nan_from_the_prefill_names_the_token(llama, monkeypatch):
    """Either method says that it was the very first token, and that the target is at fault."""
    logits = type(llama).logits
    monkeypatch.setattr(type(llama), "logits", lambda self, hidden: logits(self, hidden) * math.nan)
    with pytest.raises(ValueError, match="token 0: the target's logits are unusable"):
        autoregressive(llama, PROMPT, max_new_tokens=4)
    with pytest.raises(ValueError, match="token 0: the target's logits are unusable"):
        speculate(llama, make_drafter(llama), PROMPT, max_new_tokens=4)


def test_two_taus_have_two_names():
    """One response of one long round, one of nine short: 6.0 by response, 2.8 by round (EAGLE#153)."""
    responses = [made_up([10]), made_up([2] * 9)]
    assert tau_of_responses(responses) == 6.0 and pooled_tau(responses) == 2.8
    with pytest.raises(ValueError, match="undefined"):
        pooled_tau([made_up([])])


def test_tau_counts_the_bonus_and_all_rounds():
    """Exits at depths 2, 0 and 1 of a tree: blocks of 3, 1 and 2, tau 2.0 (EAGLE#146)."""
    assert pooled_tau([made_up([3, 1, 2])]) == 2.0


def test_no_warning_on_a_healthy_run(llama):
    """Warnings mean something: an ordinary run has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        speculate(llama, make_drafter(llama), PROMPT, budget=16, temperature=1.0, seed=0, max_new_tokens=20)


def test_the_clock_waits_for_queued_work(monkeypatch):
    """mlx-benchmark#21: a lap on a GPU ends when its kernels have, not when they were queued; a CPU has no queue."""
    assert not Clock(torch.device("cpu")).cuda
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: (waited.append(1), time.sleep(0.05)))
    clock = Clock(torch.device("cuda"))
    assert clock.lap() >= 0.05 and len(waited) == 2


def test_the_head_s_time_is_the_pass_s(llama):
    """Rows that a verifier asks for are part of the verify stage, wherever in the round they are made; none is lost."""
    quick, drafter = llama.logits, make_drafter(llama)

    def slow(hidden):
        time.sleep(0.02)
        return quick(hidden)

    llama.logits = slow
    got = speculate(llama, drafter, PROMPT, budget=6, temperature=1.0, seed=0, max_new_tokens=8, stop=NEVER)
    assert got.stage_s["verify"] >= 0.02 * len(got.rounds)
    assert got.decode_s >= 0.04 * len(got.rounds)  # the draft's and the tree's
