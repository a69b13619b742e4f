"""The training loop: it learns, stops and resumes, skips what is no number, and n processes are one."""

import itertools
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch

import tevlib.training.train as train_module
from tests.tiny import make_drafter, make_target
from tests.training.texts import PROMPTS, TAPS, full_disk, made, quick
from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.decode import speculate
from tevlib.decoding.drafter import block_embeddings
from tevlib.training.batch import step_rollouts
from tevlib.training.evaluate import held_out_laws
from tevlib.training.head_loss import PARTS
from tevlib.training.initialise import choose_mask_id, drafter_from_target
from tevlib.training.train import learning_rate, pool, train


def test_schedule_and_order():
    """Warm-up, cosine to zero; every rollout once an epoch, in an order of (seed, epoch) alone."""
    config = quick(steps=100, warmup=0.1)
    rates = [learning_rate(step, config) for step in range(100)]
    assert rates[0] == pytest.approx(3e-4) and max(rates) == pytest.approx(3e-3) and rates[-1] < 1e-5
    seen = [i for step in range(6) for i in step_rollouts(step, 12, 2, seed=0)]
    assert sorted(seen) == list(range(12))
    assert seen != [i for step in range(6) for i in step_rollouts(step, 12, 2, seed=1)]


def test_training_learns_and_leaves_the_target_alone(tmp_path):
    """Overfitted on a few texts the loss falls and acceptance rises; no parameter of the target moves (trl#5862)."""
    target = make_target()
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    texts = made(target)[:4]
    drafter = drafter_from_target(target, texts[0].ids, layers=2, block_size=4, taps=TAPS, seed=0, mask_id=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = train(target, drafter, texts, texts, quick(steps=150, validate_every=150), tmp_path, untrained=True)
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"] and rows[-1]["skipped"] == 0
    assert all(torch.equal(before[name], value) for name, value in target.model.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in target.model.parameters())
    got = speculate(target, drafter, PROMPTS[0], budget=8, max_new_tokens=24, stop=frozenset({-1}))
    assert got.tokens == texts[0].ids[len(PROMPTS[0]) :].tolist() and got.tau > 1.8
    check_acceptance(target, drafter, texts)
    with pytest.warns(UserWarning, match=r"first token loss of an untrained drafter is .* guessing costs 4\.85"):
        train(target, drafter, texts, texts, quick(steps=1, token_weight=0.5), tmp_path / "again", untrained=True)


@torch.no_grad()
def check_acceptance(target, drafter, texts) -> None:
    """AssertionError unless decoding accepts what the training pass has right, block by block (SpecForge#533)."""
    lengths = []
    for text in texts:
        got = speculate(target, drafter, text.ids[: text.prompt_length], budget=3, builder="chain", max_new_tokens=24)
        anchor = text.prompt_length
        for r in got.rounds:
            if anchor + drafter.block_size > len(text.ids):
                break
            blocks = block_embeddings(target, drafter, text.ids[None, None, anchor])
            states = drafter(text.features[None], blocks, torch.tensor([[anchor]]))[0, 0, 1:]
            right = target.logits(states).argmax(-1) == text.ids[anchor + 1 : anchor + drafter.block_size]
            assert r.length == 1 + int(right.long().cumprod(0).sum())
            anchor += r.length
            lengths.append(r.length)
    assert len(set(lengths)) > 1 and len(lengths) > 16


def test_a_resumed_run_is_the_uninterrupted_run(tmp_path):
    """Weights, optimiser, schedule, order and draws go on bit for bit (SpecForge#460); another config is refused."""
    target = make_target()
    texts = made(target)

    def run(folder, steps_before=None):
        drafter = drafter_from_target(target, texts[0].ids, layers=1, block_size=4, taps=TAPS, seed=0, mask_id=5)
        if steps_before is not None:  # stop by an exception in mid-run, as Ctrl-C does
            calls = []

            def stop(*_):
                calls.append(1)
                if len(calls) > steps_before:
                    raise KeyboardInterrupt

            hook = drafter.register_forward_pre_hook(stop)
            with pytest.raises(KeyboardInterrupt):
                train(target, drafter, texts, texts[:2], quick(), folder)
            hook.remove()
            drafter = drafter_from_target(target, texts[0].ids, layers=1, block_size=4, taps=TAPS, seed=0, mask_id=5)
        train(target, drafter, texts, texts[:2], quick(), folder)
        return drafter.state_dict()

    whole, resumed = run(tmp_path / "a"), run(tmp_path / "b", steps_before=7)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    with pytest.raises(ValueError, match="another learning_rate"):
        drafter = make_drafter(target, block_size=4, layers=1)
        train(target, drafter, texts, texts[:2], quick(learning_rate=1.0), tmp_path / "a")


@pytest.mark.parametrize("where", ["torch.optim.AdamW.step", "tevlib.training.train.validate"])
def test_ctrl_c_in_an_update_or_a_validation_loses_neither(tmp_path, monkeypatch, where):
    """An update that was applied is not applied again, and the last validation is not left out, after a restart."""
    target = make_target()
    texts = made(target)

    def run(folder):
        drafter = drafter_from_target(target, texts[0].ids, layers=1, block_size=4, taps=TAPS, seed=0, mask_id=5)
        return drafter, lambda: train(target, drafter, texts, texts[:2], quick(save_every=3), folder)

    whole, go = run(tmp_path / "a")
    rows = go()
    calls, (module, name) = [], where.rsplit(".", 1)
    owner = torch.optim.AdamW if name == "step" else sys.modules[module]
    real = getattr(owner, name)

    def interrupted(*arguments, **named):
        result = real(*arguments, **named)
        calls.append(1)
        if len(calls) == (7 if name == "step" else 2):
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "b")[1]()
    resumed, go = run(tmp_path / "b")
    timed = {"steps_per_s", "tokens_per_s"}
    timeless = [{k: v for k, v in row.items() if k not in timed} for row in go()]
    assert timeless == [{k: v for k, v in row.items() if k not in timed} for row in rows]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_a_full_disk_keeps_the_last_whole_state(tmp_path, monkeypatch):
    """A state is replaced only by a whole one: after a save that broke off, the run goes on from the save before."""
    target = make_target()
    texts = made(target)

    def run():
        drafter = drafter_from_target(target, texts[0].ids, layers=1, block_size=4, taps=TAPS, seed=0, mask_id=5)
        return train(target, drafter, texts, texts[:2], quick(save_every=3), tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full_disk(torch.save))
        with pytest.raises(OSError, match="no space"):
            run()
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 3
    assert run()[-1]["step"] == 10


class Processes:
    """An accelerator of several processes, seen from the last: the others' packed sums are known."""

    def __init__(self, *others):
        self.others, self.num_processes = others, 1 + len(others)

    def reduce(self, packed, reduction):
        assert reduction == "sum"
        return torch.stack([packed, *self.others]).sum(0)


def test_a_step_is_the_sum_of_the_shares_of_all_processes():
    """Gradient and losses add up; a process that had nothing to learn takes part with zeros."""
    model = torch.nn.Linear(3, 1, bias=False)
    model.weight.grad = torch.tensor([[6.0, -3.0, 0.0]])
    parts = torch.zeros(len(PARTS))
    parts[0] = 4.0
    assert pool(Processes(), model, parts)[0].tolist() == parts.tolist()
    assert model.weight.grad.tolist() == [[6.0, -3.0, 0.0]]
    other = torch.cat([torch.tensor([2.0, 3.0, 16.0]), parts])
    assert float(pool(Processes(other), model, parts)[0][0]) == 8.0
    assert model.weight.grad.tolist() == [[8.0, 0.0, 16.0]]
    model.weight.grad = None
    assert pool(Processes(other), model, parts * 0)[0].tolist() == parts.tolist()
    assert model.weight.grad.tolist() == [[2.0, 3.0, 16.0]]


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_a_step_with_a_number_that_is_none_is_not_used(fault):
    """Such a step is reported as unusable, whichever number of it is at fault, its gradient included."""
    model = torch.nn.Linear(3, 1, bias=False)
    model.weight.grad = torch.zeros(1, 3)
    assert not pool(Processes(), model, torch.tensor([1.0, fault]))[1]
    model.weight.grad = torch.tensor([[0.0, fault, 0.0]])
    assert not pool(Processes(), model, torch.ones(2))[1]


def test_skipped_steps_move_nothing_and_are_counted(tmp_path, monkeypatch):
    """Steps whose loss is NaN leave the weights and the optimiser as they were; the rows say how many there were."""
    target = make_target()
    texts = made(target)
    drafter = drafter_from_target(target, texts[0].ids, layers=1, block_size=4, taps=TAPS, seed=0, mask_id=5)
    real, seen = train_module.loss, []

    def sometimes_nan(*arguments):
        total, parts = real(*arguments)
        seen.append([p.detach().clone() for p in drafter.parameters()])
        return total * (float("nan") if len(seen) in (4, 5) else 1.0), parts

    monkeypatch.setattr(train_module, "loss", sometimes_nan)
    rows = train(target, drafter, texts, texts[:2], quick(), tmp_path)
    assert rows[-1]["skipped"] == 2 and all(bool(p.isfinite().all()) for p in drafter.parameters())
    same = [all(map(torch.equal, a, b)) for a, b in itertools.pairwise(seen)]
    assert same == [step in (3, 4) for step in range(9)]


def test_every_sequence_of_every_step_draws_its_own_anchors(tmp_path, monkeypatch):
    """No two sequences of a run draw with the same random numbers, and dealing them out to processes changes none."""
    target = make_target()
    texts = made(target)
    real, draws = train_module.draw_uniforms, {}

    def run(ranks):
        found = []

        def spy(lengths, seeds):
            keys = real(lengths, seeds)
            found.extend(float(row[0]) for row in keys)
            return keys

        for rank in range(ranks):
            drafter = drafter_from_target(target, texts[0].ids, layers=1, block_size=4, taps=TAPS, seed=0, mask_id=5)
            with monkeypatch.context() as patch:
                patch.setattr(train_module, "draw_uniforms", spy)
                patch.setattr(train_module, "_sum", lambda _accelerator, packed: packed)
                patch.setattr(train_module.Accelerator, "process_index", rank)
                patch.setattr(train_module.Accelerator, "num_processes", ranks)
                train(target, drafter, texts, texts[:2], quick(steps=6), tmp_path / f"{ranks}-{rank}")
        return found

    draws = {ranks: run(ranks) for ranks in (1, 2)}
    assert len(set(draws[1])) == 12 and sorted(draws[1]) == sorted(draws[2])


def test_what_cannot_be_trained_or_validated_is_refused_at_once(tmp_path):
    """A block of one token, no held-out text, no budget: an error before the first step, not after the last."""
    target = make_target()
    texts = made(target)[:2]
    with pytest.raises(ValueError, match="block size 1 predicts nothing"):
        train(target, make_drafter(target, block_size=1), texts, texts, quick(), tmp_path)
    with pytest.raises(ValueError, match="held_out is empty"):
        train(target, make_drafter(target), texts, [], quick(), tmp_path)
    with pytest.raises(ValueError, match="validation needs budgets"):
        quick(validation_budgets=())


RANK = """
import sys, torch
torch.set_num_threads(1)
from tests.tiny import make_target
from tests.training.texts import TAPS, made, quick
from tevlib.training.initialise import drafter_from_target
from tevlib.training.train import train
target = make_target()
texts = made(target)
drafter = drafter_from_target(target, texts[0].ids, layers=1, block_size=4, taps=TAPS, seed=0, mask_id=5)
how = dict(steps=int(sys.argv[2]), sequences=5, anchors=6, objective=sys.argv[3], trees=2, tree_budget=6)
train(target, drafter, texts, texts[:2], quick(accumulate=int(sys.argv[4]), **how), sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["base", "exit", "gain", "opd"])
def test_two_processes_are_one_with_the_whole_batch(tmp_path, objective):
    """Two gloo processes, with three and two sequences in two passes each, end where one does with all five."""
    states = []
    for n in (1, 2):
        folder = tmp_path / str(n)
        script = tmp_path / "rank.py"
        script.write_text(RANK)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]
        subprocess.run(
            [*launch, str(script), str(folder), "6", objective, str(n)],
            check=True,
            env=os.environ | {"PYTHONPATH": os.getcwd()},
        )
        states.append(torch.load(folder / "state.pt", weights_only=True)["drafter"])
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_killed_run_resumes(tmp_path):
    """kill -9 in mid-run loses at most the steps since the last save, and the end is the same."""
    script = tmp_path / "run.py"
    script.write_text(RANK)
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, str(script), str(killed), "400", "exit", "1"], env=env)
    deadline = time.monotonic() + 120
    while not (killed / "state.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < torch.load(killed / "state.pt", weights_only=True)["step"] < 400
    for folder in (killed, whole):
        subprocess.run([sys.executable, str(script), str(folder), "400", "exit", "1"], check=True, env=env)
    ends = [torch.load(folder / "state.pt", weights_only=True)["drafter"] for folder in (killed, whole)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_held_out_ceilings_are_what_decoding_records():
    """The validation number is the C_p that `speculate` records for the same context."""
    target = make_target("qwen3")
    drafter = make_drafter(target)
    text = made(target)[2]
    found = held_out_laws(target, drafter, [text], contexts=3, budgets=(4, 9), temperatures=(0.0, 1.0))
    anchors = [text.prompt_length + middle for middle in (4, 12, 20)]
    for budget, temperature in found:
        laws = found[budget, temperature]
        for value, root_exit, anchor in zip(laws.ceilings, laws.root_exits, anchors, strict=True):
            prefix, root = text.ids[:anchor], int(text.ids[anchor])
            target_logits = target.logits
            forced = torch.full((128,), -50.0)
            forced[root] = 50.0
            # The prefill, the one call with a single row, chooses the root.
            target.logits = lambda h, f=forced, g=target_logits: f if h.ndim == 1 else g(h)
            round_ = speculate(
                target, drafter, prefix, budget=budget, temperature=temperature, max_new_tokens=2, stop={-1}, seed=0
            ).rounds[0]
            del target.logits
            assert int(round_.tree.tokens[0]) == root
            assert float(value) == pytest.approx(round_.ceiling, abs=1e-4)
            assert float(root_exit) == pytest.approx(float(round_.w[0]), abs=1e-4)


def test_fewer_contexts_than_texts_are_as_many_texts():
    """One context in each of some responses, the same for every drafter; never one in each of all."""
    target = make_target("qwen3")
    texts = made(target)
    how = dict(budgets=(4,), temperatures=(1.0,))
    some = held_out_laws(target, make_drafter(target), texts, contexts=3, **how)[4, 1.0]
    all_of_them = held_out_laws(target, make_drafter(target), texts, contexts=len(texts), **how)[4, 1.0]
    assert some.texts.tolist() == [0, 1, 2]
    torch.testing.assert_close(some.ceilings, all_of_them.ceilings[:: len(texts) // 3])


def test_mask_id_is_a_real_unused_row():
    """Explicit, mask token, unused row, spare special token; never a row that is not there (Model-Optimizer#1621)."""
    target = make_target()
    tokenizer = target.tokenizer
    assert choose_mask_id(tokenizer, 128, explicit=9) == 9
    with pytest.raises(ValueError, match="200 is not a row"):
        choose_mask_id(tokenizer, 128, explicit=200)
    assert choose_mask_id(tokenizer, 130) == 128
    with pytest.raises(ValueError, match="no spare special token"):
        choose_mask_id(tokenizer, 128)
    tokenizer.add_special_tokens({"additional_special_tokens": ["t99"]})
    assert choose_mask_id(tokenizer, 128) == 99
    tokenizer.mask_token = "t50"
    assert choose_mask_id(tokenizer, 128) == 50


def test_a_trained_drafter_survives_its_folder(tmp_path):
    """Saved and loaded, it drafts the same; embedding and head are not in the file."""
    from safetensors.torch import load_file

    target = make_target("qwen3")
    drafter = make_drafter(target)
    save_drafter(drafter, tmp_path / "d", target=target, dtype=torch.float32)
    again = load_drafter(tmp_path / "d", target)
    names = load_file(tmp_path / "d" / "model.safetensors").keys()
    assert len(names) == 11 * 2 + 3 and not any("embed" in n or "lm_head" in n for n in names)
    a, b = (speculate(target, d, PROMPTS[0], max_new_tokens=20, stop={-1}) for d in (drafter, again))
    assert [r.path for r in a.rounds] == [r.path for r in b.rounds]
    assert all(torch.equal(x.tree.tokens, y.tree.tokens) for x, y in zip(a.rounds, b.rounds, strict=True))
