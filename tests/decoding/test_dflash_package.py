"""Round trips with the `dflash` package (z-lab's own code): files go both ways and give the same drafts."""

import json

import pytest
import torch
from dflash.model import DFlashDraftModel as Theirs
from dflash.model import _crop_to, _draft_value, _make_cache, _raw_input_embeddings, dflash_generate
from transformers import Qwen3Config

from tests.tiny import make_drafter, make_target
from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.decode import autoregressive, draft, speculate
from tevlib.decoding.drafter import DFlashDraftModel, embed_for

CLOSE = dict(atol=1e-5, rtol=1e-5)
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SLIDES = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}
KINDS = {
    "full": {},
    "sliding": {"layer_types": ["sliding_attention"] * 2, **SLIDES},
    "mixed": {"layer_types": ["sliding_attention", "full_attention"], **SLIDES},
    "mixed, two-sided": {"layer_types": ["sliding_attention", "full_attention"], "is_causal": False, **SLIDES},
    "causal": {"is_causal": True},
    "llama3": {"rope_parameters": LLAMA3},
    "biased": {"attention_bias": True},
}


@pytest.fixture(scope="module")
def target():
    return make_target("qwen3")


def randomised(model):
    """The model with random weights that no initialisation would give."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(1 + 0.2 * noise if "norm" in name else 0.25 * noise)
    return model.eval()


def config_of(target, **changed) -> Qwen3Config:
    config = make_drafter(target).config
    config.update(changed)
    return config


@torch.no_grad()
def rounds(ours, theirs, head, scale=1.0):
    """Largest difference of states and of logits over four rounds, whose contexts go beyond a window of 6."""
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(24, ours.fc.in_features, generator=generator)
    mine, cache, found, start = ours.new_cache(40), _make_cache(theirs.config), [], 0
    for anchor in (2, 5, 16, 24):
        block = torch.randn(8, ours.config.hidden_size, generator=generator)
        new = features[start:anchor]
        got = ours.draft(mine, block, new)
        hidden = theirs(
            position_ids=torch.arange(start, anchor + 8)[None],
            noise_embedding=block[None],
            target_hidden=new[None],
            past_key_values=cache,
            use_cache=True,
        )
        _crop_to(cache, anchor)
        rows = hidden[0, 1:]
        found.append(float((got - rows * scale).abs().max()))
        found.append(float((head.logits(got) - theirs.compute_logits(rows, head.head)).abs().max()))
        start = anchor
    return max(found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_package_reads_what_we_write(target, tmp_path, kind):
    """Its `from_pretrained` finds every tensor of our folder, and its states and logits are ours, round by round."""
    ours = randomised(DFlashDraftModel(config_of(target, **KINDS[kind])))
    save_drafter(ours, tmp_path / "ours", target=target, dtype=torch.float32)
    theirs, info = Theirs.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert (theirs.block_size, theirs.mask_token_id, theirs.target_layer_ids) == (8, 5, [0, 2])
    assert rounds(ours, theirs.eval(), target) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_we_read_what_the_package_writes(target, tmp_path, kind):
    """Its `save_pretrained`, in shards with an index, loads here and drafts the same."""
    theirs = randomised(Theirs(config_of(target, **KINDS[kind])))
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").is_file()
    assert rounds(load_drafter(tmp_path / "theirs", target), theirs, target) <= 1e-5


def test_both_scale_and_cap_logits_alike(tmp_path):
    """`output_multiplier` and `final_logit_softcapping` of a drafter for a soft-capped target: the same logits."""
    capped = make_target("qwen3")
    capped.softcap = 3.0
    dflash = {"mask_token_id": 5, "target_layer_ids": [0, 2], "output_multiplier": 0.5, "final_logit_softcapping": 3.0}
    ours = randomised(DFlashDraftModel(config_of(capped, dflash_config=dflash)))
    save_drafter(ours, tmp_path / "ours", target=capped, dtype=torch.float32)
    theirs = Theirs.from_pretrained(tmp_path / "ours").eval()
    assert rounds(load_drafter(tmp_path / "ours", capped), theirs, capped, scale=0.5) <= 1e-5
    hidden = 9 * torch.randn(4, 32)
    assert float(theirs.compute_logits(hidden, capped.head).abs().max()) <= 3.0


@pytest.mark.parametrize("kind", ["full", "mixed"])
def test_its_decoding_gives_our_text(target, tmp_path, kind):
    """`dflash_generate` at T = 0 on our folder, before and behind the window: our text."""
    ours = randomised(DFlashDraftModel(config_of(target, **KINDS[kind])))
    theirs = Theirs.from_pretrained(save_drafter(ours, tmp_path / "d", target=target, dtype=torch.float32)).eval()
    for length in (6, 30):
        prompt = torch.randint(6, 128, (1, length), generator=torch.Generator().manual_seed(length))
        text = dflash_generate(theirs, target.model, prompt, 24, None)[0, length:].tolist()
        assert text == autoregressive(target, prompt[0], max_new_tokens=24, stop=()).tokens
        assert text == speculate(target, ours, prompt[0], builder="chain", max_new_tokens=24, stop=()).tokens


@pytest.mark.parametrize("family", ["gemma3", "qwen2", "llama3"])
def test_a_drafter_made_for_another_family_drafts_there_as_here(tmp_path, family):
    """For a target whose embedding scales and whose logits are capped the file says so: the package, which reads the
    bare tables, then makes our inputs, our capped logits and our text."""
    target = make_target(family)
    ours = randomised(make_drafter(target))
    theirs = Theirs.from_pretrained(save_drafter(ours, tmp_path / "d", target=target, dtype=torch.float32)).eval()
    again = load_drafter(tmp_path / "d", target)
    scale = float(_draft_value(theirs.config, "input_embedding_scale", 1.0))
    ids = torch.arange(20)
    torch.testing.assert_close(embed_for(target, again, ids), target.embed(ids), **CLOSE)
    torch.testing.assert_close(_raw_input_embeddings(target.model, ids, scale), target.embed(ids), **CLOSE)
    assert (scale != 1) == (family == "gemma3") == (target.softcap is not None)
    again.embedding_scale = theirs.config.dflash_config["input_embedding_scale"] = 2.0  # another than the target's
    doubled = _raw_input_embeddings(target.model, ids, _draft_value(theirs.config, "input_embedding_scale"))
    assert torch.equal(embed_for(target, again, ids), doubled)
    again.embedding_scale = theirs.config.dflash_config["input_embedding_scale"] = scale
    assert rounds(again, theirs, target) <= 1e-5
    if target.softcap is not None:
        drafted = draft(target, again, again.new_cache(30), 7, 7, torch.randn(9, 64))
        bare = torch.log_softmax(target.head(9 * torch.randn(7, 32)), -1)
        assert float(drafted.max() - drafted.min()) <= 2 * target.softcap < float(bare.max() - bare.min())
    prompt = torch.randint(8, 128, (1, 30), generator=torch.Generator().manual_seed(1))
    text = dflash_generate(theirs, target.model, prompt, 16, None)[0, 30:].tolist()
    assert text == speculate(target, again, prompt[0], builder="chain", max_new_tokens=16, stop=()).tokens


def test_the_file_is_in_the_dialect_of_every_reader(target, tmp_path):
    """What z-lab, vLLM and SGLang look for in `config.json`: both rotary spellings, kinds of layers, window, taps."""
    changed = {**KINDS["mixed"], "rope_parameters": LLAMA3}
    ours = randomised(DFlashDraftModel(config_of(target, **changed)))
    folder = save_drafter(ours, tmp_path / "d", target=target, dtype=torch.float32)
    config = json.loads((folder / "config.json").read_text())
    old = {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    assert config["rope_parameters"] == LLAMA3 and (config["rope_theta"], config["rope_scaling"]) == (5e5, old)
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["use_sliding_window"] is True and config["sliding_window"] == 6
    assert config["block_size"] == 8 and config["num_target_layers"] == 4 and "auto_map" not in config
    assert config["dflash_config"] == {"mask_token_id": 5, "target_layer_ids": [0, 2]}
