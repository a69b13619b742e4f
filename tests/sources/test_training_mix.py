"""The training prompts: enough, distinct, reproducible, and apart from the four suites."""

import collections
import re

import pytest

from tevlib.sources import assets, training_mix
from tevlib.sources.decontaminate import decontaminate
from tevlib.sources.prompts import SUITES, Prompt, load_prompts, training_prompts


@pytest.fixture(scope="module")
def mix():
    try:
        return training_prompts(8000, seed=0)
    except assets.AssetMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def evaluation(mix):
    return [prompt for suite in SUITES for prompt in load_prompts(suite)]


def grams(text, size=13):
    """Slow and separate from the library: word 13-grams after the two fixed instructions were cut off."""
    text = text.split("\nPlease reason step by step, and put")[0]
    text = text.removeprefix("Write a solution to the following problem and make sure that it passes the tests:")
    row = re.sub(r"[^\w]+", " ", text.lower()).split()
    return {" ".join(row[i : i + size]) for i in range(len(row) - size + 1)}, " ".join(row)


def test_no_training_prompt_overlaps_a_suite(mix, evaluation):
    """No training prompt equals a suite's turn or shares thirteen consecutive words with one."""
    seen, whole = set(), set()
    for prompt in evaluation:
        for turn in prompt.turns:
            found, row = grams(turn)
            seen |= found
            whole.add(row)
    for prompt in mix:
        found, row = grams(prompt.turns[0])
        assert not found & seen and row not in whole, prompt


def test_mix_is_large_distinct_and_of_the_stated_shares(mix):
    """8,000 prompts, no text or id twice; 40% mathematics, 23% code, the rest questions, reading and writing."""
    assert len(mix) == len({prompt.turns for prompt in mix}) == len({prompt.id for prompt in mix}) == 8000
    share = collections.Counter(prompt.suite for prompt in mix)
    assert share["train/math"] == pytest.approx(0.40 * 8000, abs=2)
    assert sum(n for topic, n in share.items() if "code" in topic) == pytest.approx(0.23 * 8000, abs=4)
    assert sum(weight for weight, _ in training_mix.SHARES.values()) == pytest.approx(1)
    assert not {prompt.suite for prompt in mix} & set(SUITES)


def test_mix_is_reproducible_and_nested(mix):
    """The same seed gives the same prompts, a smaller n a prefix, another seed others."""
    assert training_prompts(500, seed=0) == mix[:500]
    assert training_prompts(500, seed=1) != mix[:500]
    share = collections.Counter(prompt.suite for prompt in mix[:100])
    assert share["train/math"] in (39, 40, 41)


def test_mathematics_keeps_out_math500(mix, evaluation):
    """MATH's test split minus MATH-500: the held-out problems do not come back with another format."""
    held_out = {prompt.turns[0] for prompt in evaluation if prompt.suite == "math500"}
    problems = {prompt.turns[0] for prompt in mix if prompt.suite == "train/math"}
    assert problems and not problems & held_out
    assert all(text.endswith("put your final answer within \\boxed{}.") for text in problems)


def test_code_stubs_are_python(mix):
    """The MBPP stubs in HumanEval's format compile once a body is added."""
    stubs = [prompt.turns[0] for prompt in mix if prompt.suite == "train/code_stub"]
    assert len(stubs) > 400
    for text in stubs:
        source = re.fullmatch(r"Write a solution .*?:\n```python\n(.*)\n```", text, re.S)[1]
        compile(source + "    pass\n", "stub", "exec")


def test_more_than_the_mix_holds_is_refused(mix):
    """A number that cannot be supplied names both; zero is refused."""
    with pytest.raises(ValueError, match=r"100000 training prompts asked for, the mix can supply \d+"):
        training_prompts(100_000)
    with pytest.raises(ValueError, match="at least 1"):
        training_prompts(0)


def test_decontamination_finds_planted_overlap():
    """Equal texts, a shared run of thirteen words, and a short evaluation turn inside a longer prompt are dropped."""
    long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    evaluation = [Prompt("e/0", "e", (long, "Rewrite this as a song please, now!")), Prompt("e/1", "e", ("Why?",))]
    texts = {
        "thirteen": "Well: TWO three, four five six seven eight nine ten eleven twelve thirteen fourteen.",
        "twelve": "three four five six seven eight nine ten eleven twelve thirteen fourteen",
        "equal": "why",
        "inside": "I have a text. Rewrite this as a song, please: now.",
        "fine": "Rewrite this as a poem please now",
    }
    kept, dropped = decontaminate([Prompt(name, "t", (text,)) for name, text in texts.items()], evaluation)
    assert [prompt.id for prompt in kept] == ["twelve", "fine"]
    assert [prompt.id for prompt in dropped] == ["thirteen", "equal", "inside"]


def test_decontamination_ignores_the_fixed_instructions():
    """The evaluation's own instruction is format: sharing it is no overlap."""
    instruction = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    kept, _ = decontaminate(
        [Prompt("a", "t", ("What is 1 + 1?" + instruction,))], [Prompt("b", "e", ("What is 2 + 1?" + instruction,))]
    )
    assert len(kept) == 1
