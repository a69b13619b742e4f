"""Rollouts: they are the target's own decoding, seeded row by row, refilled, resumable, and never half on the disk."""

import pytest
import torch

import tevlib.training.rollouts as rollouts_module
from tests.tiny import make_target
from tests.training.texts import PROMPTS, TAPS, full_disk, made
from tevlib.decoding.decode import autoregressive
from tevlib.training.batch import collate, usable
from tevlib.training.rollouts import RolloutStore, draw, make_rollouts, rollouts
from tevlib.training.timing import rollout_rates


def test_greedy_rollouts_are_plain_decoding(target):
    """Rows of different lengths, refilled in mid-flight, write what each would write alone."""
    for rollout, prompt in zip(made(target), PROMPTS, strict=True):
        alone = autoregressive(target, prompt, max_new_tokens=24, stop=frozenset({-1})).tokens
        assert rollout.ids.tolist() == prompt + alone and rollout.prompt_length == len(prompt)


def test_rollouts_end_at_stop_tokens(target):
    """A response ends with the first stop token, kept."""
    free = made(target)[3]
    stop = int(free.ids[free.prompt_length + 4])
    for rollout in made(target, stop_ids=frozenset({stop})):
        response = rollout.ids[rollout.prompt_length :].tolist()
        assert stop not in response[:-1] and (response[-1] == stop or len(response) == 24)


def test_rows_that_end_at_different_times_are_refilled_and_moved_whole():
    """Tokens and features of every rollout are its own when rows around it end early, are refilled, or close up."""
    target, stop = make_target(), frozenset(range(4, 24))
    texts = made(target, stop_ids=stop)
    assert len({len(r.ids) - r.prompt_length for r in texts}) > 3
    for rollout, prompt in zip(texts, PROMPTS, strict=True):
        assert rollout.ids.tolist() == prompt + autoregressive(target, prompt, max_new_tokens=24, stop=stop).tokens
        _, features = target.prefill(target.new_cache(64), rollout.ids, TAPS)
        torch.testing.assert_close(rollout.features[:-1], features[:-1], atol=1e-4, rtol=1e-4)
        assert not rollout.features[-1].any()


def test_rollout_features_are_those_of_a_prefill(target):
    """What is kept beside the tokens is what the target's taps say of them (all but the last, never fed, token)."""
    for rollout in made(target)[:4]:
        _, features = target.prefill(target.new_cache(64), rollout.ids, TAPS)
        torch.testing.assert_close(rollout.features[:-1], features[:-1], atol=1e-4, rtol=1e-4)
        assert not rollout.features[-1].any()


def test_sampled_rollouts_depend_on_seed_and_index_only():
    """The rows beside a rollout, and where a run resumed, do not change it."""
    target = make_target()
    whole = made(target, temperature=0.7)
    assert [r.ids.tolist() for r in whole] == [r.ids.tolist() for r in made(target, temperature=0.7, rows=3)]
    rest = made(target, temperature=0.7, skip=frozenset(range(6)))
    assert [r.ids.tolist() for r in whole[6:]] == [r.ids.tolist() for r in rest]
    assert [r.ids.tolist() for r in whole] != [r.ids.tolist() for r in made(target, temperature=0.7, seed=1)]


def test_draw_follows_the_law():
    """Inverse transform on an even grid of uniforms gives each token its share; zero-probability tokens none."""
    logits = torch.tensor([[0.5, 0.2, 0.0, 0.3]]).log()
    grid = (torch.arange(1000) + 0.5) / 1000
    tokens = draw(logits.expand(1000, -1), 1.0, grid)
    assert torch.bincount(tokens, minlength=4).tolist() == [500, 200, 0, 300]
    assert int(draw(logits, 1.0, torch.tensor([0.99999999]))) == 3


def test_store_resumes_and_refuses_other_settings(tmp_path, monkeypatch):
    """Complete shards stay as they are, missing prompts are made, other settings are refused by name."""
    monkeypatch.setattr("tevlib.training.rollouts.SHARD_ROLLOUTS", 4)
    target = make_target()
    how = dict(temperature=0.0, max_new_tokens=8, seed=0, rows=3)
    store = make_rollouts(target, PROMPTS, TAPS, tmp_path, **how)
    whole = [r.ids.tolist() for r in store.read()]
    kept, removed = store.shards()[0], store.shards()[-1]
    stamp = kept.stat().st_mtime_ns
    removed.unlink()
    assert len(RolloutStore(tmp_path).done()) < len(PROMPTS)
    again = make_rollouts(target, PROMPTS, TAPS, tmp_path, **how)
    assert [r.ids.tolist() for r in again.read()] == whole and kept.stat().st_mtime_ns == stamp
    with pytest.raises(ValueError, match=r"other settings.*temperature"):
        make_rollouts(target, PROMPTS, TAPS, tmp_path, **how | {"temperature": 0.5})


def test_a_lost_or_damaged_shard_costs_itself_only(tmp_path, monkeypatch):
    """With a shard missing in the middle no other one is overwritten; one cut short is named with what to do."""
    monkeypatch.setattr("tevlib.training.rollouts.SHARD_ROLLOUTS", 4)
    target = make_target()
    how = dict(temperature=0.0, max_new_tokens=8, seed=0, rows=3)
    whole = [r.ids.tolist() for r in make_rollouts(target, PROMPTS, TAPS, tmp_path, **how).read()]
    first, second, third = RolloutStore(tmp_path).shards()
    second.write_bytes(second.read_bytes()[:300])
    with pytest.raises(ValueError, match=rf"{second.name} is damaged .* delete it"):
        make_rollouts(target, PROMPTS, TAPS, tmp_path, **how)
    second.unlink()
    kept = {path: path.read_bytes() for path in (first, third)}
    assert [r.ids.tolist() for r in make_rollouts(target, PROMPTS, TAPS, tmp_path, **how).read()] == whole
    assert all(path.read_bytes() == data for path, data in kept.items())


def test_interrupted_rollouts_are_kept(tmp_path, monkeypatch):
    """Ctrl-C between two shards keeps every response that was finished."""
    target, stop = make_target(), iter(range(100))
    forward = type(target).forward

    def interrupted(self, *arguments):
        if next(stop) > 25:
            raise KeyboardInterrupt
        return forward(self, *arguments)

    monkeypatch.setattr(type(target), "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_rollouts(target, PROMPTS, TAPS, tmp_path, temperature=0.0, max_new_tokens=8, seed=0, rows=3)
    assert 0 < len(RolloutStore(tmp_path).done()) < len(PROMPTS)


def test_a_full_disk_leaves_no_half_shard(tmp_path, monkeypatch):
    """A shard has its name only once it is whole: a write that breaks off costs that shard, and the next run makes it
    again."""
    monkeypatch.setattr("tevlib.training.rollouts.SHARD_ROLLOUTS", 4)
    target = make_target()
    how = dict(temperature=0.0, max_new_tokens=8, seed=0, rows=3)
    whole = [r.ids.tolist() for r in make_rollouts(target, PROMPTS, TAPS, tmp_path / "whole", **how).read()]
    with monkeypatch.context() as patch:
        patch.setattr(rollouts_module, "save_file", full_disk(rollouts_module.save_file))
        with pytest.raises(OSError, match="no space"):
            make_rollouts(target, PROMPTS, TAPS, tmp_path / "cut", **how)
    assert len(RolloutStore(tmp_path / "cut").done()) == 4
    assert [r.ids.tolist() for r in make_rollouts(target, PROMPTS, TAPS, tmp_path / "cut", **how).read()] == whole


def test_rollouts_of_nothing_and_of_nan_are_refused(monkeypatch):
    """No rows or no new tokens is an error, not an empty set; a NaN row is no draw of the last token."""
    target = make_target()
    for bad in ({"rows": 0}, {"max_new_tokens": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            made(target, **bad)
    logits = type(target).logits
    monkeypatch.setattr(type(target), "logits", lambda self, hidden: logits(self, hidden) * float("nan"))
    for temperature in (0.0, 0.7):
        with pytest.raises(ValueError, match="rollout row 0 has a NaN logit"):
            made(target, temperature=temperature)


def test_bad_prompts_are_named():
    """An empty prompt, or one that leaves no room, is an error with its index."""
    target = make_target()
    with pytest.raises(ValueError, match="prompt 1 has 0 tokens"):
        list(rollouts(target, [[5], []], TAPS, temperature=0.0, max_new_tokens=4, seed=0))


def test_only_the_target_s_own_words_are_supervised():
    """Neither prompt nor padding is learnt from."""
    target = make_target()
    batch = collate(made(target)[:4])
    for row, rollout in enumerate(made(target)[:4]):
        n = len(rollout.ids)
        expected = [False] * rollout.prompt_length + [True] * (n - rollout.prompt_length)
        assert batch.supervised[row].tolist() == expected + [False] * (batch.ids.shape[1] - n)
    with pytest.raises(ValueError, match="nothing to learn"):
        usable(made(target, max_new_tokens=1))


def test_rates_count_the_tokens_that_answers_have():
    """Ours and transformers': as many tokens as asked for without a stop; an answer ends with its first stop."""
    target = make_target()
    how = {"rows": 3, "new_tokens": 6, "repeats": 1}
    assert [rate["tokens"] for rate in rollout_rates(target, PROMPTS[:5], **how)] == [30, 30]
    target.model.generation_config.eos_token_id = list(range(target.vocab_size))
    found = rollout_rates(target, PROMPTS[:5], stop=True, **how)
    assert [rate["tokens"] for rate in found] == [5, 5] and [r["method"] for r in found] == ["rollouts", "generate"]
    target.model.generation_config.eos_token_id = list(range(4, 40))
    counts = [rate["tokens"] for rate in rollout_rates(target, PROMPTS, stop=True, **how)]
    assert all(len(PROMPTS) < count < 6 * len(PROMPTS) for count in counts)
