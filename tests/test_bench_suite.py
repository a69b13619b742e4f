"""The benchmark suite: every section on tiny models, what its numbers add up to, its record and its picture."""

import itertools
import json
import math

import pytest
import torch

from benchmarks import __main__ as bench
from benchmarks import builder, common, cycle, head, speed, verifiers
from benchmarks.same_text import SameText
from tests.tiny import make_drafter, make_target
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.decoding.draft_vocabulary import DraftVocabulary
from tevlib.sources.prompts import SUITES
from tevlib.trees.builders import best_first_tree
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law

TINY = {
    speed: {"FULL": {"temperatures": {0.0: 2, 1.0: 1}, "tokens": 12, "budgets": (2, 4)}},
    cycle: {"FULL": {"prompts": 2, "tokens": 10, "budgets": (4, 32), "temperatures": (0.0, 1.0)}},
    head: {
        "FULL": {
            "prompts": 1,
            "tokens": 8,
            "budgets": (4,),
            "temperatures": (0.0, 1.0),
            "verifiers": head.VERIFIED,
            "repeats": 1,
        }
    },
    builder: {"SHAPES": {"smollm2": (3, 300)}, "BUDGETS": (8,)},
    verifiers: {"FULL": verifiers.FULL | {"rounds": 2, "repeats": 1, "budgets": (32, 64)}, "SHAPES": ("own",)},
}


@pytest.fixture
def pair():
    target = make_target()
    target.model.generation_config.eos_token_id = target.tokenizer.eos_token_id
    return target, make_drafter(target)


@pytest.fixture
def prompts(monkeypatch):
    """Short prompts of made-up token ids in place of the suites'."""

    def some(target, n, suites=SUITES):
        return [(suite, f"{suite}/{i}", torch.arange(4, 10 + i)) for i in range(n) for suite in suites]

    for section in (speed, cycle, head):
        monkeypatch.setattr(section, "prompt_ids", some)

    def replayed(cell, target, drafter):
        generator = torch.Generator().manual_seed(0)
        log_probs = torch.randn(3, 90, generator=generator).log_softmax(-1)
        tree = best_first_tree(log_probs, cell.budget, 0)
        return [(tree, torch.randn(len(tree), 90, generator=generator)) for _ in range(cell.rounds)]

    monkeypatch.setattr(verifiers, "collect_rounds", replayed)


@pytest.fixture
def tiny(pair, prompts, home, monkeypatch):
    """The whole suite on tiny models, its settings cut down; records go to a folder of the test's own."""
    for section, settings in TINY.items():
        for name, value in settings.items():
            monkeypatch.setattr(section, name, value)
        if section is not builder:
            monkeypatch.setattr(section, "models", lambda: pair)
    return home


def test_one_command_leaves_a_record_a_picture_and_the_bars(tiny, capsys):
    """All sections run; every bar is a number with its interval; resuming finds nothing left to do."""
    path = bench.main([])
    record = json.loads(path.read_text())
    assert list(record["sections"]) == list(bench.SECTIONS) and record["provenance"]["cpu"] and not record["quick"]
    printed = capsys.readouterr().out
    for section in record["sections"].values():
        assert section["bars"] and section["wall_s"] > 0
        for line in section["bars"]:
            assert line["what"] in printed and isinstance(line["value"], float)
            assert line["interval"] is None or line["interval"][0] <= line["interval"][1]
            assert (line["met"] is None) == (line["asked"] is None)
    assert path.with_suffix(".png").stat().st_size > 10_000
    before = path.read_text()
    assert bench.main(["--resume", str(path)]) == path and path.read_text() == before


def test_a_record_of_another_run_is_not_gone_on_with(tiny):
    """Ratios of two machines, thread counts, commits or forms do not go into one record."""
    path = bench.main(["--only", "builder"])
    record = json.loads(path.read_text())
    with pytest.raises(ValueError, match="was begun with quick = False"):
        bench.main(["--quick", "--resume", str(path)])
    path.write_text(json.dumps(record | {"provenance": record["provenance"] | {"cpu": "another"}}))
    with pytest.raises(ValueError, match="begun on another cpu: another"):
        bench.main(["--resume", str(path)])


def test_a_speed_up_is_a_ratio_of_seconds_per_token():
    """Plain over method, timed tokens only, suites weighed alike; with the prefill all tokens count."""
    rows = [
        {"suite": "a", "prompt": 1, "method": "plain", "tokens": 11, "decode_s": 2.0, "whole_s": 3.3},
        {"suite": "a", "prompt": 1, "method": "8", "tokens": 21, "decode_s": 2.0, "whole_s": 2.1},
        {"suite": "b", "prompt": 2, "method": "plain", "tokens": 5, "decode_s": 4.0, "whole_s": 4.0},
        {"suite": "b", "prompt": 2, "method": "8", "tokens": 5, "decode_s": 1.0, "whole_s": 2.0},
    ]
    assert speed.by_suite(rows, "plain", "8") == pytest.approx({"a": 2.0, "b": 4.0})
    assert speed.mean_ratio(rows, "plain", "8") == pytest.approx(3.0)
    assert speed.mean_ratio(rows, "plain", "8", "whole") == pytest.approx((3.0 + 2.0) / 2)


def test_every_method_answers_with_the_text_of_plain_decoding(pair, prompts, monkeypatch):
    """All trees of a prompt follow one drawn text, whatever their budget: none draws its own."""
    texts = {"plain": [], "trees": []}

    def kept(kind, call):
        def keeping(*arguments, **named):
            answer = call(*arguments, **named)
            texts[kind].append(tuple(answer.tokens))
            return answer

        return keeping

    monkeypatch.setattr(speed, "autoregressive", kept("plain", speed.autoregressive))
    monkeypatch.setattr(speed, "speculate", kept("trees", speed.speculate))
    speed.compare(*pair, {1.0: 1}, tokens=12, budgets=(2, 4))
    assert len(texts["plain"]) == 5 and len(set(texts["plain"])) > 1  # a warm-up, and a prompt of each suite
    assert texts["trees"] == [text for text in texts["plain"] for _ in ("2", "4", "auto")]


def test_speed_times_every_method_on_every_prompt(pair, prompts):
    """One row per prompt and method, generate at T = 0 alone; the answers to a prompt have one length, drawn or not."""
    result = speed.compare(*pair, {0.0: 2, 1.0: 1}, tokens=12, budgets=(2, 4))
    greedy = [row for row in result["rows"] if row["temperature"] == 0]
    assert len(greedy) == 8 * 5 and len(result["rows"]) == 8 * 5 + 4 * 4
    lengths = {(row["temperature"], row["prompt"], row["tokens"]) for row in result["rows"]}
    assert len(lengths) == 8 + 4
    assert {row["method"] for row in result["rows"] if row["temperature"] == 1} == {"plain", "2", "4", "auto"}
    best = max(result["speedups"][0.0][m]["value"] for m in ("2", "4", "auto"))
    assert result["bars"][0]["value"] == best and result["bars"][0]["met"] == (best >= 1.6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_budgets_decode_one_text(pair, temperature):
    """Whatever the tree, the answer is the text that plain decoding drew; its rounds accept what is in the tree."""
    target, drafter = pair
    how = {"temperature": temperature, "max_new_tokens": 40, "seed": 3}
    text = autoregressive(target, [4, 6, 9], **how).tokens
    for budget in (1, 8, 40):
        answer = speculate(target, drafter, [4, 6, 9], budget=budget, verifier=SameText(text), **how)
        assert answer.tokens == text
        at = 0
        for r in answer.rounds:
            assert [r.tree.token(node) for node in r.path] == text[at : at + len(r.path)]
            at += r.emitted


def test_drawn_texts_exit_by_the_law():
    """Summed over all texts with their probability, exit and bonus have mass w(v) p_res(a), as with every verifier."""
    generator = torch.Generator().manual_seed(1)
    tree = DraftTree([0, 1, 2, 0, 1, 2], [-1, 0, 0, 1, 1, 3])
    logits = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    law, laws = exit_law(tree, logits, 1.0), logits.softmax(-1)
    found = torch.zeros(6, 3, dtype=torch.float64)
    for text in itertools.product(range(3), repeat=4):
        verdict = SameText([0, *text])(tree, logits, 1.0, generator)
        tokens = [*(tree.token(node) for node in verdict.path[1:]), verdict.bonus]
        assert tokens == list(text[: len(tokens)])
        beyond = 3.0 ** -(4 - len(tokens))  # what follows the bonus is any text: each with the same share
        found[verdict.node, verdict.bonus] += (
            math.prod(laws[node, token] for node, token in zip(verdict.path, tokens, strict=True)) * beyond
        )
    expected = torch.stack([law.w[v] * law.residual_weights(v) / law.residual_weights(v).sum() for v in range(6)])
    assert torch.allclose(found, expected) and found.sum() == pytest.approx(1)


@pytest.mark.parametrize("proposes", ["every token", "some tokens"])
def test_parts_of_a_cycle_add_up_to_its_clock(pair, prompts, proposes):
    """Models' parts and ours together are the decode clock; each takes time, and the models are as before."""
    target, drafter = pair
    if proposes == "some tokens":  # a draft head of its own
        drafter.vocabulary = DraftVocabulary(torch.arange(60), target)
    before = [set(vars(owner)) for owner in (drafter, target.decoder, target.head, target)]
    result = cycle.profile(*pair, prompts=2, tokens=16, budgets=(8, 32), temperatures=(0.0, 1.0))
    assert [set(vars(owner)) - {"cost_curves"} for owner in (drafter, target.decoder, target.head, target)] == [
        names - {"cost_curves"} for names in before
    ]
    for row in result["rows"]:
        assert sum(row["parts"].values()) == pytest.approx(row["decode_s"])
        assert all(seconds > 0 for seconds in row["parts"].values())
    for name, parts in result["ms"].items():
        assert set(parts) == {*cycle.MODEL, *cycle.OURS}, name
    ours = sum(row["parts"][part] for row in result["rows"] for part in cycle.OURS)
    assert cycle.share_of_ours(result["rows"]) == pytest.approx(ours / sum(row["decode_s"] for row in result["rows"]))


def test_a_sleeping_model_is_the_models_time_and_a_sleeping_verifier_ours(pair, prompts, monkeypatch):
    """Time is put where it was spent: the target's pass in `target`, the choice in `decide`; prefills count nowhere."""
    import time

    from tevlib.decoding import decode

    target, _ = pair

    def slow(call, seconds):
        def slowed(*arguments, **named):
            time.sleep(seconds)
            return call(*arguments, **named)

        return slowed

    monkeypatch.setattr(target.decoder, "forward", slow(target.decoder.forward, 0.02))
    monkeypatch.setitem(decode.VERIFIERS, "tev", slow(decode.VERIFIERS["tev"], 0.01))
    result = cycle.profile(*pair, prompts=1, tokens=8, budgets=(32,), temperatures=(1.0,))
    ms = result["ms"]["B = 32, T = 1"]
    assert 20 < ms["target"] < 40 and 10 < ms["decide"] < 20 and max(ms["verify"], ms["commit"], ms["emit"]) < 10


def test_the_head_is_saved_rows_and_not_rounds(pair, prompts):
    """Both ways see the same rounds; the deferred one makes fewer rows than the tree has nodes."""
    result = head.compare(*pair, prompts=1, tokens=12, budgets=(8,), temperatures=(0.0,), verifiers=("tev",), repeats=1)
    (own,) = result["settings"].values()
    assert own["rounds"] > 4 and own["nodes"] == 9 and 1 <= own["rows_made"] < 9 and set(own["ms"]) == set(head.WAYS)


def test_intervals_hold_their_value_and_keep_strata():
    """A bootstrap within suites keeps both suites in every draw; one prompt a suite leaves nothing to draw."""
    rows = [{"suite": s, "prompt": f"{s}{i}", "x": i + 10 * (s == "b")} for s in "ab" for i in range(20)]
    mean = lambda some: sum(r["x"] for r in some) / len(some)  # noqa: E731
    apart = common.with_interval(mean, rows)["interval"]
    low, high = common.with_interval(mean, rows, within="suite")["interval"]
    assert apart[0] < low < mean(rows) < high < apart[1]
    assert common.with_interval(mean, rows[:1])["interval"] is None


def test_orders_rotate():
    """Every method is first as often as the others, and each follows another one in turn."""
    orders = [common.rotated("abc", place) for place in range(6)]
    assert sorted(order[0] for order in orders) == sorted("abcabc") and len({tuple(o) for o in orders}) == 6


@pytest.mark.slow
def test_the_quick_form_on_the_shipped_drafter(home):
    """The real target and drafter: a cycle's share, its picture, the head's saving, which other work may turn round."""
    path = bench.main(["--quick", "--only", "cycle", "head"])
    record = json.loads(path.read_text())
    (saved, *_) = record["sections"]["head"]["bars"]
    shares = [line["value"] for line in record["sections"]["cycle"]["bars"]]
    assert -1 < saved["value"] < 1 and all(0 < share < 0.5 for share in shares)
    assert path.with_suffix(".png").is_file()


def test_verifier_forms_are_compared_on_the_same_rounds(tiny):
    """Every form is timed at every setting; a ratio is that of total times; smaller budgets have prefixes of trees."""
    found = verifiers.measure()
    assert [(s["temperature"], s["budget"], s["nodes"]) for s in found["settings"]] == [
        (0.6, 32, 33), (0.6, 64, 65), (1.0, 32, 33), (1.0, 64, 65)
    ]  # fmt: skip
    for setting in found["settings"]:
        assert set(setting["median_ms"]) == set(verifiers.TIMED) and setting["rounds"] == 8
        for ratio in setting["ratios"].values():
            assert ratio["interval"][0] <= ratio["value"] <= ratio["interval"][1] and len(ratio["range"]) == 2
    rows = [
        {"round": i, "verifier": name, "ms": ms, "nodes": 5, "internal": 2}
        for i in (0, 1)
        for name, ms in dict.fromkeys(verifiers.TIMED, 4.0 + i).items()
    ]
    rows[4]["ms"] = 1.0  # the parallel form in round 0
    assert verifiers.summary(rows)["ratios"]["tev_parallel / predraw"]["value"] == (1 + 5) / (4 + 5)
    assert "tev_descent / predraw_lazy" in verifiers.table(found["settings"])
