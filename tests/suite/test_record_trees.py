"""Recording rounds: what is kept is what was decoded, and the oracle is the ceiling of every builder."""

import pytest
import torch

from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.load import load_target
from tevlib.explorer.flow import flow
from tevlib.explorer.recording import check_recording
from tevlib.suite.record_trees import TEMPERATURES, LiveDecoder, Recorder


@pytest.fixture(scope="module")
def models(tiny):
    target = load_target(tiny / "target", dtype="float32")
    return target, load_drafter(tiny / "drafter-tiny", target)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_replay_is_what_was_decoded(models, temperature):
    """P, w and C_p from the recording are the decoder's own, round by round; path, bonus and text fit the tokens."""
    target, drafter = models
    recorder = Recorder(target, {"one": drafter, "same": drafter}, budget=6, top=4)
    generation = recorder.record("Say a.", "p/0", temperature, 12, seed=1)
    recording = check_recording(recorder.recording())
    answer, stop = recording["answers"][0], TEMPERATURES.index(temperature)
    assert len(answer["rounds"]) == len(generation.rounds) and len(answer["pieces"]) == len(generation.tokens)
    for cycle, decoded in zip(answer["rounds"], generation.rounds, strict=True):
        first, second, oracle = cycle["trees"]
        found = flow(first, temperature, stop)
        assert found.P == pytest.approx(decoded.P.tolist(), abs=1e-4)
        assert found.w == pytest.approx(decoded.w.tolist(), abs=1e-4)
        assert first["tokens"] == second["tokens"] and first["parents"] == second["parents"]
        assert flow(oracle, temperature, stop).coverage >= found.coverage - 1e-4
        block = [first["tokens"][v] for v in cycle["path"][1:]] + [cycle["bonus"]]
        emitted = generation.tokens[cycle["start"] : cycle["start"] + len(block)]
        assert block[: len(emitted)] == emitted


def test_missing_tokens_are_the_targets_own(models):
    """The first missing token of a node is the likeliest one without a child, with its log-probability."""
    target, drafter = models
    recorder = Recorder(target, {"one": drafter}, budget=6, top=4, oracle=False)
    recorder.record("Say a.", "p/0", 1.0, 6, seed=1)
    cycle = recorder.recording()["answers"][0]["rounds"][0]
    tree = cycle["trees"][0]
    assert len(cycle["trees"]) == 1
    for node, (tokens, log_p) in enumerate(zip(tree["missing"], tree["missing_log_p"], strict=True)):
        children = {tree["tokens"][u] for u in range(1, len(tree["tokens"])) if tree["parents"][u] == node}
        assert not children & set(tokens) and len(tokens) == 4
        assert log_p == sorted(log_p, reverse=True)
        assert float(torch.tensor(log_p).exp().sum()) <= tree["rho"][TEMPERATURES.index(1.0)][node] + 1e-4


def test_bad_requests_are_refused(models, tiny):
    """A temperature that is not recorded and an empty prompt are refused before anything is decoded."""
    target, drafter = models
    with pytest.raises(ValueError, match=r"temperature must be one of 0.0, 0.3"):
        Recorder(target, {"one": drafter}).record("Say a.", "p", 0.7, 4, 0)
    with pytest.raises(ValueError, match="the prompt is empty"):
        LiveDecoder(str(tiny / "target")).recording("  ", str(tiny / "drafter-tiny"), 4, 1.0, 4)
