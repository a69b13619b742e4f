"""A profile is rehearsed: the same cells with their sizes cut, on tiny models that the hub's client finds by name."""

import json
from pathlib import Path

import pytest
import yaml

from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.load import load_target
from tevlib.report.rehearsed import verdict_counts
from tevlib.sources.chat import chat_ids
from tevlib.suite.cells import NO_DRAFTER, is_hub_id
from tevlib.suite.doctor import refused
from tevlib.suite.hub import Hub
from tevlib.suite.models import drafter_folder
from tevlib.suite.profile import load_profile, load_trained, read_profile
from tevlib.suite.rehearsal import LARGEST, TRAINING, cut, hub_models, rehearse, set_stage
from tevlib.suite.rehearsal_models import MODELS, write_models


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub cache with every target and released drafter of the paper profile, and drafter -> target."""
    pairs = hub_models(load_profile("paper"), load_trained("paper"))
    cache = tmp_path_factory.mktemp("hub")
    write_models(cache, pairs)
    return Hub(False, "off", cache, False), pairs


def test_the_same_cells_are_left_with_their_sizes_cut(tmp_path):
    """Nothing of the profile is written twice: every cell of it, and no other, is there with less to do."""
    written = read_profile("paper")[1]
    path = tmp_path / "paper-rehearsal.yaml"
    path.write_text(yaml.safe_dump(cut(written, tmp_path), sort_keys=False))
    real, small = load_profile("paper"), load_profile(str(path))
    sizes = {"profile", *LARGEST}
    for one, other in zip(real, small, strict=True):
        ours, theirs = one.fields(), other.fields()
        drafter = ours.pop("drafter"), theirs.pop("drafter")
        assert {k: v for k, v in ours.items() if k not in sizes} == {k: v for k, v in theirs.items() if k not in sizes}
        assert all(theirs[name] == min(ours[name], most) for name, most in LARGEST.items() if name in ours)
        assert Path(drafter[1]).name == Path(drafter[0]).name
        if not is_hub_id(drafter[0]) and drafter[0] != NO_DRAFTER:  # trained ones never go where real ones do
            assert Path(drafter[1]).is_relative_to(tmp_path)
    for (name, ours), (place, theirs) in zip(
        load_trained("paper").items(), load_trained(str(path)).items(), strict=True
    ):
        assert place == str(tmp_path / "drafters" / Path(name).name) and theirs["steps"] == 2
        assert {k for k in ours if ours[k] != theirs[k]} <= set(TRAINING)


@pytest.mark.parametrize("name", MODELS)
def test_every_target_of_the_paper_is_there_by_its_name(hub, name, monkeypatch):
    """datasets#4760: what fills the cache is what is found offline. Each target has its family's class, names its
    commit, is not refused, has all stop ids, begins a chat with one BOS, and its released drafters fit it."""
    found, pairs = hub
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(found.folder))
    assert found.cached(name) and refused(name, found.configuration(name)) is None
    target = load_target(name)
    (snapshot,) = (found.folder / f"models--{name.replace('/', '--')}" / "snapshots").iterdir()
    assert target.info.revision == snapshot.name
    assert target.config.model_type == {
        "Qwen/Qwen3-4B": "qwen3", "Qwen/Qwen3-8B": "qwen3", "meta-llama/Llama-3.1-8B-Instruct": "llama",
        "google/gemma-4-12b-it": "gemma4_unified_text", "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3_moe",
    }[name]  # fmt: skip
    assert len(target.stop_ids) == (3 if "Llama" in name else 2)
    ids = chat_ids(target.tokenizer, [{"role": "user", "content": "Say a."}])
    assert ids.count(target.tokenizer.bos_token_id) == (0 if "Qwen" in name else 1)
    drafters = [drafter for drafter, of in pairs.items() if of == name]
    assert drafters
    for drafter in drafters:
        assert load_drafter(drafter_folder(drafter), target).block_size == 16


def test_bad_requests_leave_an_earlier_rehearsal(home, tmp_path):
    """A mistyped folder of tokenizers is no reason to make do with others, a table that is not there none to begin."""
    earlier = home / "runs" / "smoke-rehearsal" / "report.html"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("numbers")
    with pytest.raises(ValueError, match=r"no folder of tokenizers at .*nowhere"):
        set_stage("smoke", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="unknown table of profile smoke 'table9'"):
        set_stage("smoke", tables=["table9"])
    unknown = tmp_path / "smoke.yaml"  # the same name, so the same folder
    unknown.write_text(read_profile("paper")[0].read_text().replace("Qwen/Qwen3-4B", "some/Model-4B"))
    with pytest.raises(ValueError, match="no architecture is known for 'some/Model-4B'"):
        set_stage(str(unknown))
    assert earlier.read_text() == "numbers"


def test_an_unknown_architecture_is_named(tmp_path):
    """A profile with a model that nobody told the rehearsal about is refused before anything is written."""
    with pytest.raises(ValueError, match="no architecture is known for 'some/Model-4B'"):
        write_models(tmp_path / "hub", {"some/drafter": "some/Model-4B"})
    assert not (tmp_path / "hub").exists()


@pytest.mark.slow
def test_training_cells_and_tables_run_by_the_profile_itself(home, tmp_path):
    """A part of the paper profile from end to end: the exit drafter is trained by its notebook, Table 4's cells run in
    theirs under the targets' hub names, the table is printed, and every number of it is called a rehearsal."""
    written = read_profile("paper")[1]
    part = written | {"tables": {"table4": written["tables"]["table4"] | {"suites": {"gsm8k": {"prompts": 128}}}}}
    profile = tmp_path / "part.yaml"
    profile.write_text(yaml.safe_dump(part))
    stage = set_stage(str(profile))
    found = rehearse(stage)
    assert not found.faults and found.cells.ran == 4 and len(found.trained) == 1
    assert found.tables == ["34_table4_crossed", "36_figures"]
    with stage.set():
        (counts,) = verdict_counts(str(stage.profile)).values()
    assert set(counts) == {"rehearsal"}
    assert not (home / "data").exists()  # nothing beside the rehearsal's own folder
    record = json.loads(next((stage.folder / "data" / "results").glob("????????????.json")).read_text())
    assert record["cell"]["profile"] == "part-rehearsal" and record["cell"]["target"] == "Qwen/Qwen3-4B"
