"""Drafter folders: the released layout, both spellings, and everything that must not load in silence."""

import json
import re
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from tests.tiny import make_drafter, make_target
from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.drafter import DFlashDraftModel, Rotary, default_taps
from tevlib.decoding.drafter_config import REFUSED, Sight, read_config
from tevlib.decoding.load import load_target


@pytest.fixture
def saved(tmp_path):
    """A target, a folder with its drafter, and a way to change the folder's config."""
    target = make_target("qwen3")
    folder = save_drafter(make_drafter(target), tmp_path / "drafter", target=target, dtype=torch.float32)

    def change(**values):
        path = folder / "config.json"
        config = json.loads(path.read_text())
        for key, value in values.items():
            config.pop(key, None) if value is None else config.update({key: value})
        path.write_text(json.dumps(config))

    return target, folder, change


def test_names_and_shapes_are_those_of_released_checkpoints(saved):
    """11 tensors a layer and 3 more, no prefix, nothing of the target's."""
    _, folder, _ = saved
    shapes = {name: tuple(value.shape) for name, value in load_file(folder / "model.safetensors").items()}
    expected = {"fc.weight": (32, 64), "hidden_norm.weight": (32,), "norm.weight": (32,)}
    for i in range(2):
        at = f"layers.{i}."
        expected |= {at + "self_attn.q_proj.weight": (64, 32), at + "self_attn.o_proj.weight": (32, 64)}
        expected |= {at + f"self_attn.{n}_proj.weight": (32, 32) for n in "kv"}
        expected |= {at + f"self_attn.{n}_norm.weight": (16,) for n in "qk"}
        expected |= {at + f"mlp.{n}_proj.weight": (48, 32) for n in ("gate", "up")}
        expected |= {at + "mlp.down_proj.weight": (32, 48)}
        expected |= {at + f"{n}_layernorm.weight": (32,) for n in ("input", "post_attention")}
    assert shapes == expected


def test_config_has_both_spellings(saved):
    """Readers of either generation find the rotary base, the taps, the mask and the block."""
    _, folder, _ = saved
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"] and config["model_type"] == "qwen3"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["layer_types"] == ["full_attention"] * 2 and config["num_target_layers"] == 4
    assert config["dflash_config"] == {"mask_token_id": 5, "target_layer_ids": [0, 2]} and config["block_size"] == 8


def test_default_taps():
    """The spread of the published drafters."""
    assert default_taps(36, 5) == (1, 9, 17, 25, 33) and default_taps(32, 5) == (1, 8, 15, 22, 29)
    assert default_taps(48, 5) == (1, 12, 23, 34, 45) and default_taps(30, 1) == (15,)


@pytest.mark.parametrize("key", ["target_layer_ids", "mask_token_id", "block_size"])
def test_a_missing_key_is_named_not_guessed(saved, key):
    """Guessed taps load in silence and are wrong for most published drafters (dflash#156)."""
    target, folder, change = saved
    nested = {"mask_token_id": 5, "target_layer_ids": [0, 2]}
    nested.pop(key, None)
    change(dflash_config=nested, **({"block_size": None} if key == "block_size" else {}))
    with pytest.raises(ValueError, match=f"lacks {key}"):
        load_drafter(folder, target)


def test_num_target_layers_is_optional_and_keys_may_be_nested(saved):
    """With the taps stated, their number of layers need not be; nested keys win over top-level ones."""
    target, folder, change = saved
    change(num_target_layers=None, block_size=99)
    change(dflash_config={"mask_token_id": 5, "target_layer_ids": [0, 2], "block_size": 4})
    assert load_drafter(folder, target).block_size == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen3ForCausalLM", "a target.*load_target"),
        ("DFlash2DraftModel", "DFlash 2: convolutions"),
        ("Qwen3DSparkModel", "DSpark"),
        ("DFlashSpeculator", "speculators"),
        ("SomethingElse", r"only \['DFlashDraftModel'\] is read$"),
    ],
)
def test_other_architectures_are_refused_by_name(saved, name, words):
    """A target's folder, a later generation of drafters, another writer's form: the error says what it is."""
    target, folder, change = saved
    change(architectures=[name])
    with pytest.raises(ValueError, match=rf"(?s){name}.*only.*DFlashDraftModel.*") as raised:
        load_drafter(folder, target)
    assert re.search(words, str(raised.value))


def test_a_drafter_taken_for_a_target_is_explained(saved):
    """`model_type` says qwen3 (omlx#886): loading it as a model is refused, not filled up with random weights."""
    _, folder, change = saved
    with pytest.raises(ValueError, match=r"is a DFlash drafter, not a target.*load_drafter"):
        load_target(folder, dtype="float32", device="cpu")
    change(architectures=["Qwen3ForCausalLM"])
    with pytest.raises(ValueError, match="is a DFlash drafter, not a target"):
        load_target(folder, dtype="float32", device="cpu")


NESTED = {"mask_token_id": 5, "target_layer_ids": [0, 2]}


@pytest.mark.parametrize("key", [*REFUSED, "something_new"])
def test_keys_that_change_the_computation_are_refused_by_name(saved, key):
    """Nested, or (those that are known) at the top level, where the `dflash` package looks too; switched off they are
    no matter."""
    target, folder, change = saved
    for off in (False, None, 0):
        change(dflash_config=NESTED | {key: off})
        load_drafter(folder, target)
    change(dflash_config=NESTED | {key: 4})
    with pytest.raises(ValueError, match=rf"keys that change the computation.*{key} \("):
        load_drafter(folder, target)
    change(dflash_config=NESTED, **{key: 4})
    if key in REFUSED:
        with pytest.raises(ValueError, match=rf"keys that change the computation.*{key} \("):
            load_drafter(folder, target)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"layer_types": ["full_attention"]}, "layer_types lists 1 layers, num_hidden_layers is 2"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of kind linear_attention"),
        ({"layer_types": ["sliding_attention"] * 2}, "no window is in force"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 64}, "use_sliding_window must be true"),
        ({"is_causal": True, "dflash_config": NESTED | {"causal": False}}, "contradict"),
        ({"dflash_config": NESTED | {"output_multiplier": -1.0}}, "output_multiplier must be a positive number"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0, tiny qwen3 has None"),
        ({"dflash_config": NESTED | {"num_target_layers": 7}}, "num_layers 7.*has 4"),
    ],
)
def test_a_computation_that_is_not_ours_is_refused(saved, changed, words):
    """Another activation, another kind of layer, a window that is not in force, a soft-cap that the target lacks."""
    target, folder, change = saved
    if "num_target_layers" in changed.get("dflash_config", {}):
        change(tevlib_target=None)
    change(**changed)
    with pytest.raises(ValueError, match=words):
        load_drafter(folder, target)


def test_layer_kinds_that_are_not_listed_follow_from_the_window(saved):
    """Without `layer_types`, layers from `max_window_layers` on slide, as transformers reads such a file."""
    target, folder, change = saved
    change(layer_types=None, use_sliding_window=True, sliding_window=9, max_window_layers=1)
    assert load_drafter(folder, target).sights == [Sight(False), Sight(True, 9)]
    change(sliding_window=None)  # transformers would take 4096
    with pytest.raises(ValueError, match="no window is in force"):
        load_drafter(folder, target)
    change(use_sliding_window=False, sliding_window=9)
    assert load_drafter(folder, target).sights == [Sight(False)] * 2


def test_copies_of_the_targets_matrices_are_no_matter_others_are_refused(saved):
    """A file with `lm_head` and a tied flag loads where it is the target's (mlx-examples#564); vLLM would use its own
    mask embedding and head, which nothing here does."""
    target, folder, change = saved
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tie_word_embeddings=True)
    extra = {"lm_head.weight": target.head.weight.clone(), "embed_tokens.weight": target.embed.weight.clone()}
    save_file(tensors | extra, path)
    loaded = load_drafter(folder, target).state_dict()
    assert loaded.keys() == tensors.keys() and all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    for name in extra:
        save_file(tensors | extra | {name: extra[name] + 1}, path)
        with pytest.raises(ValueError, match=f"{name} of its own"):
            load_drafter(folder, target)
    save_file(tensors, path)
    (folder / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"mask_embedding\.pt"):
        load_drafter(folder, target)


def test_missing_and_extra_tensors_and_shards_are_named(saved):
    """No tensor is made up, none ignored; a missing shard has a name (transformers#45079)."""
    target, folder, _ = saved
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({k: v for k, v in tensors.items() if k != "norm.weight"} | {"t2d": torch.zeros(2, 2)}, path)
    with pytest.raises(ValueError, match=r"missing tensors \['norm.weight'\], unexpected tensors \['t2d'\]"):
        load_drafter(folder, target)
    path.unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for shard, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / shard)
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded = load_drafter(folder, target)
    assert all(torch.equal(loaded.state_dict()[name], tensors[name]) for name in names)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"missing shards b\.safetensors"):
        load_drafter(folder, target)
    for broken in ({}, {"weight_map": None}, {"weight_map": {"fc.weight": 3}}):
        (folder / "model.safetensors.index.json").write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=r"index\.json: weight_map must say in which file"):
            load_drafter(folder, target)


def test_whole_numbers_are_no_weights(saved):
    """A quantised file without its scales would load as numbers in the hundreds; what it holds is said instead."""
    target, folder, _ = saved
    tensors = load_file(folder / "model.safetensors")
    tensors["norm.weight"] = tensors["norm.weight"].mul(50).to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"must be floating-point numbers, some are torch\.int8"):
        load_drafter(folder, target)


def test_a_drafter_is_replaced_whole(saved, monkeypatch):
    """What interrupts the deletion of the earlier drafter finds the new one in its place."""
    target, folder, _ = saved

    def interrupted(path, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tevlib.decoding.checkpoint.shutil.rmtree", interrupted)
    other = make_drafter(target, block_size=5)
    with pytest.raises(KeyboardInterrupt):
        save_drafter(other, folder, target=target)
    assert load_drafter(folder, target).block_size == 5


def test_a_drafter_of_another_target_is_refused(saved):
    """Same sizes, another tokenizer: refused (sglang#23838). Other weights only: a warning."""
    target, folder, _ = saved
    with pytest.raises(ValueError, match=r"num_layers 4.*has 3"):
        load_drafter(folder, make_target("qwen3", num_hidden_layers=3))
    with pytest.raises(ValueError, match=r"hidden_size 32.*has 48"):
        load_drafter(folder, make_target("qwen3", hidden_size=48))
    other = make_target("qwen3")
    other.tokenizer.add_tokens([])
    other.tokenizer.eos_token = "t77"
    with pytest.raises(ValueError, match="tokenizer"):
        load_drafter(folder, other)
    other = make_target("qwen3")  # the same size and special tokens, other pieces
    swapped = json.loads(other.tokenizer.backend_tokenizer.to_str())
    pieces = swapped["model"]["vocab"]
    swapped["model"]["vocab"] = {name: i if i < 4 else len(pieces) + 3 - i for name, i in pieces.items()}
    other.tokenizer.backend_tokenizer.model = Tokenizer.from_str(json.dumps(swapped)).model
    with pytest.raises(ValueError, match="tokenizer"):
        load_drafter(folder, other)
    with pytest.warns(UserWarning, match="tau may fall"):
        load_drafter(folder, make_target("qwen3", seed=7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_drafter(folder, target)
        load_drafter(folder, make_target("qwen3", dtype=torch.bfloat16))


def test_an_old_folder_without_fingerprint_is_checked_by_shape(saved):
    """Released checkpoints carry no fingerprint: shapes decide."""
    target, folder, change = saved
    change(tevlib_target=None)
    load_drafter(folder, target)
    change(dflash_config={"mask_token_id": 500, "target_layer_ids": [0, 2]})
    with pytest.raises(ValueError, match="mask id 500"):
        load_drafter(folder, target)


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip


OLD_LLAMA3 = {"type": "llama3", **{k: v for k, v in LLAMA3.items() if k != "rope_type"}}


ROPE = {
    "architectures": ["DFlashDraftModel"], "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32, "vocab_size": 64, "block_size": 4,
    "max_position_embeddings": 1024, "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("style", "scaling"),
    [("old", None), ("new", None), ("old", LLAMA3), ("new", LLAMA3), ("old", OLD_LLAMA3), ("new", OLD_LLAMA3)],
)
def test_rotary_base_is_read_in_both_spellings(style, scaling):
    """A base of 1e6 is never taken for 10,000, and scaling survives (vllm#42624)."""
    if style == "old":
        raw = ROPE | {"rope_theta": 1e6, "rope_scaling": scaling}
    else:
        raw = ROPE | {"rope_parameters": {"rope_theta": 1e6, **(scaling or {"rope_type": "default"})}}
    mine = Rotary(read_config(raw, "here")).inverse_frequencies
    modern = {"rope_type": "default", "rope_theta": 1e6, **(scaling or {})}
    if "type" in modern:
        modern["rope_type"] = modern.pop("type")
    reference = Qwen3RotaryEmbedding(
        Qwen3Config(
            hidden_size=32, num_attention_heads=2, head_dim=16, max_position_embeddings=1024, rope_parameters=modern
        )
    )
    torch.testing.assert_close(mine, reference.inv_freq)
    with pytest.raises(ValueError, match="rope_theta"):
        read_config({k: v for k, v in raw.items() if not k.startswith("rope_")}, "here")


KINDS = {kind: {"rope_theta": theta} for kind, theta in (("full_attention", 1e6), ("sliding_attention", 1e4))}


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"rope_theta": 1e6, "rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type is 'dynamic'"),
        ({"rope_theta": 1e6, "rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope_type is 'longrope'"),
        ({"rope_parameters": {"rope_theta": 1e6, "type": "mrope", "mrope_section": [2, 3, 3]}}, "rope_type is 'mrope'"),
        ({"rope_theta": 1e6, "rope_parameters": KINDS}, "kinds of layers .full_attention, sliding_attention"),
        ({"rope_theta": 1e6, "rope_scaling": {"factor": 4.0}}, "factor of 4.0 without the rope_type"),
    ],
)
def test_rotary_embeddings_of_another_kind_are_refused(stated, words):
    """Frequencies that change with the text, or differ between layers, would be taken for others in silence."""
    with pytest.raises(ValueError, match=f"here: .*{words}"):
        read_config(ROPE | stated, "here")


def test_transformers_loads_the_folder_too(saved):
    """The class is an ordinary `PreTrainedModel`: `from_pretrained` finds every weight and makes the same drafter.

    What no file holds, the rotary frequencies, is computed and not left as the memory happened to be.
    """
    target, folder, _ = saved
    model, info = DFlashDraftModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ours = load_drafter(folder, target)
    assert all(torch.equal(ours.state_dict()[name], value) for name, value in model.state_dict().items())
    features, block, anchor = torch.randn(1, 9, 64), torch.randn(1, 1, 8, 32), torch.tensor([[9]])
    with torch.no_grad():
        assert torch.equal(model.eval()(features, block, anchor), ours(features, block, anchor))


def test_rotary_frequencies_are_never_rounded(saved):
    """A drafter in bfloat16 turns by the angles it was trained with; at position 3,000 rounded ones are another's."""
    _, folder, _ = saved
    exact = Rotary(read_config(json.loads((folder / "config.json").read_text()), "here"))
    half = load_drafter(folder, make_target("qwen3", dtype=torch.bfloat16)).rotary
    positions = torch.tensor([3000])
    assert half.inverse_frequencies.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(half(positions), exact(positions), strict=True))
    assert torch.equal(exact.double().half().inverse_frequencies, half.inverse_frequencies)


def test_no_folder_is_one_clear_error(tmp_path):
    """A path without a drafter says what belongs there."""
    with pytest.raises(ValueError, match=r"no drafter at .*config\.json"):
        load_drafter(tmp_path / "nowhere", make_target())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_half_written_files_are_named(saved, name):
    """A file cut short is a ValueError with its path, whatever reader stumbles over it."""
    target, folder, _ = saved
    (folder / name).write_bytes((folder / name).read_bytes()[:200])
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        load_drafter(folder, target)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dflash_config": {"target_layer_ids": [-1, 0], "mask_token_id": 5}}, r"reads layers \[-1, 0\]"),
        ({"dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": -1}}, "mask id -1"),
        ({"block_size": 0}, "block_size must be an integer >= 1, got 0"),
        ({"block_size": True}, "block_size must be an integer >= 1, got True"),
        ({"hidden_size": "32"}, "hidden_size must be an integer >= 1, got '32'"),
        ({"num_target_layers": "four"}, "num_target_layers must be an integer >= 1, got 'four'"),
        ({"architectures": 3}, "architectures is 3"),
        ({"attention_bias": "no"}, "expected bool, got str"),
        ({"layer_types": 2}, "layer_types must list the kind of every layer, got 2"),
        ({"is_causal": "yes"}, "are true or false, got 'yes'"),
        ({"dflash_config": [1]}, r"dflash_config must be an object, got \[1\]"),
        ({"dflash_config": {"target_layer_ids": "0,2", "mask_token_id": 5}}, "must be a list of layers .* got '0,2'"),
        ({"dflash_config": {"target_layer_ids": [0, None], "mask_token_id": 5}}, r"got \[0, None\]"),
        ({"dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 5.5}}, "must be a token id, got 5.5"),
        ({"tevlib_target": "qwen"}, "tevlib_target must be an object, got 'qwen'"),
        ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta must be a positive number, got '1e4'"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "spiral"}}, "rope_type is 'spiral', not one of default"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear"}}, "Missing required keys.*factor"),
    ],
)
def test_impossible_values_are_refused(saved, changed, words):
    """A negative layer would be counted from the end in silence, another type stumble where nobody names it."""
    target, folder, change = saved
    change(**changed)
    with pytest.raises(ValueError, match=words):
        load_drafter(folder, target)


def test_saving_replaces_drafters_only(saved, tmp_path):
    """A folder of somebody's files is not wiped to make room; an older drafter and an empty folder are replaced."""
    target, folder, _ = saved
    save_drafter(make_drafter(target), folder, target=target)
    (tmp_path / "mine").mkdir()
    save_drafter(make_drafter(target), tmp_path / "mine", target=target)
    with pytest.raises(ValueError, match="something other than a drafter"):
        save_drafter(make_drafter(target), tmp_path, target=target)
    assert load_drafter(folder, target).block_size == 8
