"""Cells: what is refused before any work, and which edits change a cell's hash."""

import json
import math
from pathlib import Path

import pytest

from tevlib.decoding import checkpoint
from tevlib.decoding.decode import SAMPLED_CHAIN
from tevlib.decoding.load import DTYPES as LOADABLE
from tevlib.suite import cells as planning
from tevlib.suite.cells import Cell
from tevlib.suite.code_hash import DELTA_OF, code_digest, drafter_digest, files_digest, normalised
from tevlib.suite.profile import PROFILES, load_profile
from tevlib.trees import builders, verifiers

LOOKUP = {"builder": "prompt_lookup", "drafter": "none", "verifier": "predraw"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"suite": "gsm8"}, "did you mean 'gsm8k'"),
        ({"suite": "missing.jsonl"}, "missing.jsonl"),
        ({"verifier": "tve"}, "did you mean 'tev'"),
        ({"builder": "bestfirst"}, "did you mean 'best_first'"),
        ({"dtype": "bf16"}, "dtype"),
        ({"budget": -1}, "budget must be an integer >= 0 or 'auto', got -1"),
        ({"budget": 1.5}, "budget"),
        ({"budget": "best"}, "budget must be an integer >= 0 or 'auto', got 'best'"),
        ({"budget": "auto", "builder": "sampled_chain"}, "a sampled chain cannot be cut"),
        ({"budget": True}, "budget"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"prompts": 0}, "prompts"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"seed": None}, "seed"),
        ({"repeats": 0}, "repeats"),
        ({"drafter": "/no/such/drafter"}, "no drafter at /no/such/drafter"),
        ({"verifier": "greedy", "temperature": 1.0}, "the greedy verifier is exact at temperature 0 only"),
        ({"builder": "prompt_lookup"}, "'prompt_lookup' takes the drafter 'none'"),
        ({"builder": "prompt_lookup", "drafter": "none"}, "'prompt_lookup' is verified by predraw, got 'tev'"),
        (LOOKUP | {"budget": 0}, "looks 1 token or more ahead, got budget 0"),
        (LOOKUP | {"budget": "auto"}, "looks 1 token or more ahead, got budget 'auto'"),
        ({"drafter": "none"}, "only 'prompt_lookup' needs no drafter, 'best_first' was asked for"),
        ({"table": "../elsewhere"}, "table must be a plain name"),
    ],
)
def test_bad_cells_are_refused_by_name(tiny_cell, changed, words):
    """Every field that cannot be run is a ValueError that names it, before a model or a prompt is loaded."""
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        tiny_cell(**changed)


def test_names_are_those_of_the_code():
    """The names that planning knows without torch are the ones that the decode loop, builders and verifiers go by."""
    assert set(planning.BUILDERS) == {*builders.BUILDERS, SAMPLED_CHAIN, planning.PROMPT_LOOKUP}
    assert set(planning.VERIFIERS) == set(verifiers.VERIFIERS)
    assert set(planning.DTYPES) == set(LOADABLE)


def test_profiles_expand_to_valid_distinct_cells(monkeypatch):
    """Each shipped profile has tables 2 and 4, all four suites in each, every hash of a table its own."""
    monkeypatch.setattr(planning, "_check_drafter", lambda drafter: None)
    for name in PROFILES:
        for table, temperatures in (("table2", {0.0, 1.0}), ("table4", {1.0})):
            cells = load_profile(name, tables=[table])
            assert {cell.suite for cell in cells} == {"mt_bench", "humaneval", "gsm8k", "math500"}
            assert {cell.profile for cell in cells} == {name} and {cell.table for cell in cells} == {table}
            assert {cell.temperature for cell in cells} == temperatures
            assert len({cell.hash12() for cell in cells}) == len(cells) == len(set(cells))
            assert table != "table2" or {(cell.verifier, cell.builder) for cell in cells} == {("tev", "best_first")}


def test_the_laptop_profile_has_every_objective(monkeypatch):
    """Table 2 has a drafter of its own for the paper's four rows, for Draft-OPD and for gain: 48 cells; Table 4 crosses
    the original and the exit-trained one with three verifiers."""
    monkeypatch.setattr(planning, "_check_drafter", lambda drafter: None)
    cells = load_profile("laptop", tables=["table2"])
    drafters = {cell.role: Path(cell.drafter).name for cell in cells}
    assert list(drafters) == ["original", "finetune", "prefix", "exit", "opd", "gain"]
    assert list(drafters.values()) == [f"smollm2-135m-{name}" for name in ("base", *list(drafters)[1:])]
    assert len(cells) == 6 * 2 * 4 and len({cell.hash12() for cell in cells}) == 48
    crossed = {(cell.role, cell.verifier) for cell in load_profile("laptop", tables=["table4"])}
    assert crossed == {(r, v) for r in ("original", "exit") for v in ("predraw", "sequential_residual", "tev")}


def test_a_profile_s_tables_share_plain_decoding(monkeypatch):
    """Decode cells of all tables on one target, suite and temperature are one company; latency cells, on one suite."""
    monkeypatch.setattr(planning, "_check_drafter", lambda drafter: None)
    for name in PROFILES:
        cells = load_profile(name)
        decoded = [cell for cell in cells if isinstance(cell, planning.Cell)]
        settings = {(cell.target, cell.suite, cell.temperature) for cell in decoded}
        assert len({cell.company() for cell in decoded}) == len(settings)
        timed = [cell for cell in cells if isinstance(cell, planning.VerifierCell)]
        assert len({cell.company() for cell in timed}) == len({(cell.target, cell.suite) for cell in timed})


def test_the_laptop_profile_has_every_table_and_shares_what_it_can(monkeypatch):
    """All five tables; the rows of Table 1 that Tables 2 and 5 have too are the same cells."""
    monkeypatch.setattr(planning, "_check_drafter", lambda drafter: None)
    cells = load_profile("laptop")
    assert {cell.table for cell in cells} == {f"table{number}" for number in range(1, 6)}
    main, rest = ({c.hash12() for c in cells if (c.table == "table1") is wanted} for wanted in (True, False))
    extra = {c.role for c in cells if c.table == "table1" and c.hash12() not in rest}
    assert (
        extra == {"auto", "dflash_chain", "sampled_chain", "autoregressive", "prompt_lookup"}
        and len(main & rest) == 4 * 2 * 4
    )


METHODS = (
    "tables: {{table1: {{methods: {{a: {{{}}}}}, budgets: [1], temperatures: [1.0], suites: {{gsm8k: {{prompts: 1}}}}, "
    "target: t, builder: chain, dtype: float32, top_p: 1, top_k: 0, seed: 0, max_new_tokens: 1}}}}"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tables: {table4: {budgte: 3}}", "unknown key 'budgte'"),
        ("tables: {table4: {budgets: [3]}}", "lacks"),
        (METHODS.format("drafter: d"), "lacks verifier"),
        (METHODS.format("drafer: d"), "'drafer'; did you mean 'drafter'"),
        ("tabels: {}", "unknown key 'tabels'; did you mean 'tables'"),
        ("[1", "not YAML"),
    ],
)
def test_bad_profiles_are_refused(tmp_path, text, words):
    """A profile of one's own with a wrong key, a missing one or no YAML at all is named with what is wrong."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        load_profile(str(path))


def test_methods_are_rows_of_their_own(tmp_path, tiny):
    """A table of methods: each with its drafter, verifier and what else differs; blocks of a list follow each other."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"""
        defaults: {{builder: best_first, dtype: float32, top_p: 1.0, top_k: 0, seed: 0, max_new_tokens: 8, budgets: [6],
                    temperatures: [0.0, 1.0], suites: {{gsm8k: {{prompts: 2}}}}, target: "{tiny / "target"}"}}
        tables:
          table1:
          - methods:
              ddtree: {{drafter: "{tiny / "drafter-tiny"}", verifier: predraw}}
              chain: {{drafter: "{tiny / "drafter-tiny"}", verifier: predraw, builder: chain}}
          - temperatures: [1.0]
            methods:
              plain: {{drafter: "{tiny / "drafter-tiny"}", verifier: tev, budget: 0}}
        """
    )
    rows = [(c.temperature, c.role, c.builder, c.verifier, c.budget) for c in load_profile(str(path))]
    assert rows == [
        (0.0, "ddtree", "best_first", "predraw", 6), (0.0, "chain", "chain", "predraw", 6),
        (1.0, "ddtree", "best_first", "predraw", 6), (1.0, "chain", "chain", "predraw", 6),
        (1.0, "plain", "best_first", "tev", 0),
    ]  # fmt: skip


def test_unknown_profiles_and_tables_are_answered_with_the_nearest(monkeypatch):
    """`labtop` is answered with `laptop`, `table44` with the tables there are."""
    monkeypatch.setattr(planning, "_check_drafter", lambda drafter: None)
    with pytest.raises(ValueError, match="did you mean 'laptop'"):
        load_profile("labtop")
    with pytest.raises(ValueError, match="did you mean 'table4'"):
        load_profile("smoke", tables=["table44"])


def test_a_cell_survives_json(tiny_cell):
    """A cell's fields go through JSON and come back as the same cell with the same hash."""
    cell = tiny_cell(temperature=1)
    again = Cell(**json.loads(json.dumps(cell.fields())))
    assert again == cell and again.hash12() == cell.hash12() == tiny_cell(temperature=1.0).hash12()


def test_every_field_and_file_decides_the_hash(tiny_cell, tiny):
    """Another field, or another file of drafter, target or prompts: another hash; a drafter's card decides nothing."""
    before = tiny_cell().hash12()
    changes = {
        "seed": 1,
        "budget": 7,
        "verifier": "predraw",
        "top_p": 0.9,
        "repeats": 2,
        "prompts": 1,
    }
    assert {tiny_cell(**{key: "other"}).hash12() for key in ("profile", "table", "role")} == {before}
    assert len({before} | {tiny_cell(**{key: value}).hash12() for key, value in changes.items()}) == 1 + len(changes)
    for file, decides in (
        ("drafter-tiny/config.json", True),
        ("drafter-tiny/model.safetensors", True),
        ("target/config.json", True),
        ("target/model.safetensors", True),
        ("chat.jsonl", True),
        ("drafter-tiny/README.md", False),
    ):
        path = tiny / file
        kept = path.read_bytes() if path.exists() else None
        path.write_bytes((kept or b"# card") + b"\n")
        try:
            assert (tiny_cell().hash12() != before) == decides, file
        finally:
            path.write_bytes(kept) if kept is not None else path.unlink()
    assert tiny_cell().hash12() == before


def test_the_code_and_the_notebook_that_decode_decide_the_hash(tiny_cell, monkeypatch):
    """A record of other code is not taken for this code's: the hash holds the digest of it and of its notebook."""
    before, seen = tiny_cell().hash12(), []
    monkeypatch.setattr(planning, "code_digest", lambda notebook, own: seen.append(notebook) or "other code")
    assert tiny_cell().hash12() != before
    assert seen[0].name == "21_decode_cell.ipynb" and seen[0].is_file()


SOURCE = 'def f(x):\n    """Doc."""\n    # why\n    return x + 1\n'


@pytest.mark.parametrize(
    "edited",
    [
        "def f(x):\n    return x + 1\n",
        'def f( x ):\n    """Another."""\n\n    return (x + 1)  # because\n',
    ],
)
def test_prose_edits_change_no_digest(edited):
    """Comments, docstrings, blank lines and brackets leave the normalised code as it was."""
    assert normalised(edited) == normalised(SOURCE)


@pytest.mark.parametrize("edited", ["def f(x):\n    return x + 2\n", "def f(x, y=1):\n    return x + 1\n"])
def test_algorithm_edits_change_the_digest(edited):
    """A changed constant or signature is another program."""
    assert normalised(edited) != normalised(SOURCE)


def test_code_that_is_no_python_is_compared_as_text():
    """A notebook cell with a magic does not stop the digest; its text decides."""
    assert normalised("%matplotlib inline\n") == normalised("%matplotlib inline") != normalised("%matplotlib agg")


def test_code_digest_follows_the_deciding_files(tmp_path, write_notebook):
    """Edits of an algorithm or of a notebook's code rerun; those of a default, of prose or of the report do not."""
    package = tmp_path / "tevlib"
    for name in (
        "trees/a.py",
        "sources/b.py",
        "decoding/c.py",
        "suite/decode_cell.py",
        "suite/metrics.py",
        "report/t.py",
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(SOURCE)
    notebook, own = write_notebook("x = 1"), ("suite/decode_cell.py", "suite/metrics.py")
    before = code_digest(notebook, own, package)
    (package / "report/t.py").write_text("y = 2")
    (package / "trees/a.py").write_text(SOURCE.replace("# why", "# how"))
    write_notebook("x = 1  # said better", parameters="a: int = 5\n")
    assert code_digest(notebook, own, package) == before
    (package / "trees/a.py").write_text(SOURCE.replace("1", "2"))
    changed = code_digest(notebook, own, package)
    write_notebook("x = 2")
    assert len({before, changed, code_digest(notebook, own, package)}) == 3


def test_a_drafter_kept_as_a_difference_is_as_new_as_its_base(tmp_path, tiny_cell, tiny):
    """Its digest holds that of the drafter it differs from, under the key that checkpoints are written with."""
    assert DELTA_OF == checkpoint.DELTA_OF
    for name, config in (("base", "{}"), ("exit", json.dumps({DELTA_OF: "../base"}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
        (tmp_path / name / "some.safetensors").write_bytes(b"1")
    before, cell = drafter_digest(tmp_path / "exit"), tiny_cell(drafter=str(tmp_path / "exit")).hash12()
    assert drafter_digest(tmp_path / "base") == files_digest(tmp_path / "base")
    (tmp_path / "base" / "some.safetensors").write_bytes(b"22")
    assert drafter_digest(tmp_path / "exit") != before
    assert tiny_cell(drafter=str(tmp_path / "exit")).hash12() != cell


def test_files_digest_sees_names_and_bytes(tmp_path):
    """A renamed or changed file changes a folder's digest; hidden files and cards do not."""
    (tmp_path / "a").write_text("1")
    before = files_digest(tmp_path)
    (tmp_path / "README.md").write_text("card")
    (tmp_path / ".lock").write_text("")
    assert files_digest(tmp_path) == before
    (tmp_path / "a").rename(tmp_path / "b")
    assert files_digest(tmp_path) != before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("budgets: [16]", "budgets: 16", "budgets must be a list of different values, got 16"),
        ("budgets: [16]", "budgets: []", "budgets must be a list of different values"),
        ("budgets: [16]", "budgets: [16, 16]", "budgets must be a list of different values"),
        ("mt_bench: {prompts: 1}", "mt_bench: 1", "suite mt_bench must be a mapping, got 1"),
        ("mt_bench: {prompts: 1}", "mt_bench:", "suite mt_bench must be a mapping, got None"),
        ("mt_bench: {prompts: 1}", "mt_bench: {prompt: 1}", "unknown key 'prompt'.*prompts"),
        ("original: data", "- data", "drafters must be a mapping"),
        ("  table1:", "  tabel1:", "unknown table in mine.yaml 'tabel1'.*table1"),
    ],
)
def test_a_profile_of_the_wrong_shape_is_refused_by_key(tmp_path, old, new, words):
    """A slip of the pen in YAML names the key and what would be right, before any cell is made."""
    written = (Path(planning.__file__).parent / "profiles" / "smoke.yaml").read_text()
    assert old in written
    (tmp_path / "mine.yaml").write_text(written.replace(old, new))
    with pytest.raises(ValueError, match=words):
        load_profile(str(tmp_path / "mine.yaml"))


def test_a_profile_without_tables_is_refused(tmp_path):
    """Nothing to run is an error, not a success."""
    (tmp_path / "empty.yaml").write_text("defaults: {}\ntables:\n")
    with pytest.raises(ValueError, match="tables must name at least one table"):
        load_profile(str(tmp_path / "empty.yaml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "config.json is damaged or not whole"),
        ("[]", "must hold a JSON object"),
        ('{"tevlib_delta_of": 3}', "got"),
    ],
)
def test_a_drafter_whose_configuration_cannot_be_read_is_named_in_planning(tmp_path, tiny_cell, text, words):
    """Planning reads it too, to know what it is a difference from: a file cut short has its path in the error."""
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"")
    (tmp_path / "cut" / "config.json").write_text(text)
    with pytest.raises(ValueError, match=f"cut.config.json.*{words}|cut.{words}"):
        tiny_cell(drafter=str(tmp_path / "cut")).hash12()
