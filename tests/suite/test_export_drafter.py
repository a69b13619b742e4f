"""A drafter exported for a model hub: whole, readable by others, with its record; bad requests write nothing."""

import json
import shlex

import pytest
import torch
import yaml
from dflash.model import DFlashDraftModel as Theirs
from safetensors.torch import load_file

from tests.tiny import make_drafter, make_target
from tevlib import cli
from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.draft_vocabulary import DraftVocabulary
from tevlib.suite.cells import Cell
from tevlib.suite.code_hash import drafter_digest
from tevlib.suite.export_drafter import export_drafter
from tevlib.suite.records import record_path, write_record
from tevlib.training.card import drafter_card
from tevlib.training.config import TrainConfig
from tevlib.training.data import DataConfig

IDS = {"base_model": "someone/tiny-qwen3", "repo_id": "me/tiny-dflash"}


@pytest.fixture(scope="module")
def target():
    return make_target("qwen3", hidden_size=64)


def card_of(target, drafter, last=None):
    return drafter_card(
        "tiny", target, drafter, objective="exit", data=DataConfig(), supervised_tokens=7, processes=1, commit="abc",
        config=TrainConfig(objective="exit"), last=last or {"ceiling_B16_T0": 2.5},
        taus=[{"suite": "gsm8k", "temperature": 0.0, "budget": 16, "tau": 2.125}],
    )  # fmt: skip


@pytest.fixture
def folder(target, tmp_path):
    """A drafter's folder with a card and a draft vocabulary."""
    drafter = make_drafter(target)
    drafter.vocabulary = DraftVocabulary(torch.arange(40), target)
    return save_drafter(drafter, tmp_path / "tiny", target=target, card=card_of(target, drafter))


def front_matter(folder) -> tuple[dict, str]:
    _, head, body = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), body


def test_what_a_hub_gets(target, folder, tmp_path, home):
    """Three files that other software reads; the card has licence, target, training record, tau and fingerprint."""
    made = export_drafter(folder, tmp_path / "out", **IDS)
    assert sorted(made.files) == ["README.md", "config.json", "model.safetensors"]
    assert made.files == {file.name: file.stat().st_size for file in made.folder.iterdir()}
    head, body = front_matter(made.folder)
    assert head["license"] == "apache-2.0" and head["base_model"] == "someone/tiny-qwen3" and "dflash" in head["tags"]
    for text in (
        "| guidance | 32 |", "| gsm8k | 0.000 | 16 | 2.125 |", f"| weights | {target.fingerprint()['weights']} |",
        "layers [0, 2], counted from 0", "adds one by itself, [1, 3]", "draft_vocabulary.safetensors` is left out",
    ):  # fmt: skip
        assert text in body, text
    assert body.count("## Target") == body.count("## Serving") == 1
    assert all(command in body for command in made.commands.values())
    theirs, info = Theirs.from_pretrained(made.folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ours = load_drafter(made.folder, target)
    assert all(torch.equal(theirs.state_dict()[name], v.bfloat16()) for name, v in ours.state_dict().items())
    again = export_drafter(made.folder, tmp_path / "again", **IDS)
    assert (again.folder / "README.md").read_text().replace("/again", "/out").count("## Files") == 1


def test_commands_are_those_of_the_servers(folder, tmp_path, home):
    """vLLM counts drafted tokens, SGLang the block; quotes survive a shell; without a hub id the folder is served."""
    made = export_drafter(folder, tmp_path / "out", **IDS)
    assert made.commands == {
        "vLLM": "vllm serve someone/tiny-qwen3 --speculative-config "
        """'{"method": "dflash", "model": "me/tiny-dflash", "num_speculative_tokens": 7}'""",
        "SGLang": "python -m sglang.launch_server --model-path someone/tiny-qwen3 --speculative-algorithm DFLASH "
        "--speculative-draft-model-path me/tiny-dflash --speculative-num-draft-tokens 8",
    }
    config = json.loads((folder / "config.json").read_text())
    mixed = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 64}
    (folder / "config.json").write_text(json.dumps(config | mixed))
    made = export_drafter(folder, tmp_path / "mixed", base_model="someone/tiny-qwen3")
    assert made.commands["vLLM"].startswith("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve ")
    assert str(tmp_path / "mixed") in made.commands["SGLang"]
    written = json.loads((made.folder / "config.json").read_text())
    assert {key: written[key] for key in mixed} == mixed


def test_a_difference_is_exported_whole(target, tmp_path, home):
    """What was kept in four bits beside its base becomes weights that stand alone, the ones that were measured."""
    base = make_drafter(target)
    save_drafter(base, tmp_path / "base", target=target)
    tuned = make_drafter(target, seed=2)
    small = save_drafter(
        tuned, tmp_path / "tuned", target=target, card=card_of(target, tuned), delta_of=tmp_path / "base"
    )
    made = export_drafter(small, tmp_path / "elsewhere" / "out", **IDS)
    assert sorted(made.files) == ["README.md", "config.json", "model.safetensors"]
    assert "tevlib_delta_of" not in json.loads((made.folder / "config.json").read_text())
    assert "the difference in `delta.safetensors` is added" in made.notes[0]
    known, whole = load_drafter(small, target).state_dict(), load_file(made.folder / "model.safetensors")
    assert all(torch.equal(known[name], whole[name].float()) for name in known)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_model": None}, "states no base_model: give the target's hub id with --base-model"),
        ({"base_model": "./somewhere"}, "--base-model is written owner/name, got './somewhere'"),
        ({"repo_id": "just-a-name"}, "--repo-id is written owner/name, got 'just-a-name'"),
        ({"licence": "Apache License"}, "--licence is an identifier of the hub"),
    ],
)
def test_bad_requests_are_refused_before_any_work(folder, tmp_path, home, options, words):
    """Nothing is written, not even the folder."""
    with pytest.raises(ValueError, match=words):
        export_drafter(folder, tmp_path / "out", **IDS | options)
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_be_exported_are_refused(folder, tmp_path, home):
    """No card, a card without a licence, an output that holds something, no drafter, a drafter that is not read."""
    card = (folder / "README.md").read_text()
    (folder / "README.md").write_text(card.partition("---\n\n")[2])
    with pytest.raises(ValueError, match="states no license"):
        export_drafter(folder, tmp_path / "out", **IDS)
    assert (
        front_matter(export_drafter(folder, tmp_path / "gemma", licence="gemma", **IDS).folder)[0]["license"] == "gemma"
    )
    (folder / "README.md").unlink()
    with pytest.raises(ValueError, match=r"no card at .*README\.md"):
        export_drafter(folder, tmp_path / "out", **IDS)
    (folder / "README.md").write_text(card)
    with pytest.raises(ValueError, match="not empty"):
        export_drafter(folder, tmp_path, **IDS)
    with pytest.raises(ValueError, match="no drafter at"):
        export_drafter(tmp_path / "nothing", tmp_path / "out", **IDS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["DFlash2DraftModel"]}))
    with pytest.raises(ValueError, match="DFlash 2"):
        export_drafter(folder, tmp_path / "out", **IDS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "---\nlicense: mit\n---\ncaf\xe9".encode("latin-1"),
            r"README\.md is no card in UTF-8 .*can't decode byte 0xe9",
        ),
        (b"---\nlicense: [mit\n---\n", r"README\.md is no card in UTF-8 with YAML at its top"),
        (b"---\n- mit\n---\n", r"must be keys and values, got \['mit'\]"),
        (b"---\nlicense: [mit, other]\n---\n", r"license must be one identifier, got \['mit', 'other'\]"),
        (
            b"---\nlicense: mit\nbase_model: [a/b, c/d]\n---\n",
            r"base_model must be one identifier, got \['a/b', 'c/d'\]",
        ),
    ],
)
def test_cards_that_cannot_be_read_are_named(folder, tmp_path, home, text, words):
    """Another encoding, broken front matter, lists where one name belongs: one error with the card's path."""
    (folder / "README.md").write_bytes(text)
    with pytest.raises(ValueError, match=words):
        export_drafter(folder, tmp_path / "out", **IDS)
    assert not (tmp_path / "out").exists()


def test_sections_of_one_heading_and_odd_paths_survive(folder, tmp_path, home, capsys):
    """Nothing that somebody wrote into a card is lost, and the commands stand for paths with spaces and quotes."""
    with (folder / "README.md").open("a") as card:
        card.write("\n## Notes\n\nfirst\n\n## Notes\n\nsecond\n")
    out = tmp_path / 'a "b" c'
    assert cli.main(["export-drafter", str(folder), str(out), "--base-model", "a/b", "--repo-id", "me/tiny"]) == 0
    assert f"hf upload me/tiny '{out}'" in capsys.readouterr().out
    _, body = front_matter(out)
    assert "## Notes\n\nfirst\n\nsecond\n" in body
    command = export_drafter(folder, tmp_path / 'q "r"', base_model="a/b").commands["vLLM"]
    assert json.loads(shlex.split(command)[-1])["model"] == str(tmp_path / 'q "r"')


def test_block_lengths_on_record_for_these_very_weights_are_in_the_card(folder, tmp_path, home, record_of, tiny_fields):
    """A record counts by the digest of the files, not by a name; one of other weights does not."""
    plain = {"sha256": drafter_digest(folder, without="draft_vocabulary.safetensors")}
    for budget, sha in ((16, {"sha256": drafter_digest(folder)}), (32, plain), (64, {"sha256": "another"})):
        cell = Cell(**tiny_fields | {"budget": budget})
        write_record(record_path(cell), record_of(cell, drafter=sha))
    _, body = front_matter(export_drafter(folder, tmp_path / "out", **IDS).folder)
    table = body[body.index("## Measured by tevlib") : body.index("## Files")]
    assert "| 16 | best_first | tev | listed tokens | 2.000 | 2.000 | 2.100 | 3 |" in table
    assert "| 32 | best_first | tev | any token | 2.000" in table and "| 64 |" not in table


def test_the_command_prints_what_it_wrote(folder, tmp_path, home, capsys):
    """Files with sizes, both commands, the upload; a bad request is one line and exit code 2."""
    arguments = ["export-drafter", str(folder), str(tmp_path / "out")]
    assert cli.main([*arguments, "--base-model", "someone/tiny-qwen3", "--repo-id", "me/tiny-dflash"]) == 0
    shown = capsys.readouterr().out
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert f"model.safetensors  {size:,} bytes" in shown and "\nvLLM:\n    vllm serve " in shown
    assert "\nSGLang:\n    python -m sglang.launch_server " in shown
    assert f"hf upload me/tiny-dflash {tmp_path / 'out'}" in shown
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
