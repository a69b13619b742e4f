"""Released drafters, by the sizes and dialects of their files: every tensor has its place, and none is guessed.

The files here are as long as the real ones, in shards with an index, and hold nothing: the space is never written, and
a target without data takes what is read.
"""

import json
import struct

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma4TextConfig, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.drafter import default_taps
from tevlib.decoding.drafter_config import Sight
from tevlib.decoding.target import Target, TargetInfo

BASE = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu", "attention_bias": False,
    "attention_dropout": 0.0, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "head_dim": 128, "use_cache": True,
    "num_hidden_layers": 5, "max_window_layers": 5, "tie_word_embeddings": False, "dtype": "bfloat16",
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
}  # fmt: skip
FULL = {"layer_types": ["full_attention"] * 5, "sliding_window": None, "use_sliding_window": False}
QWEN3 = {
    **BASE, **FULL, "rope_theta": 1_000_000, "rope_scaling": None, "max_position_embeddings": 40960,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936, "num_target_layers": 36,
    "block_size": 16, "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
GEMMA = {
    **BASE, "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}, "tie_word_embeddings": True,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 262144, "max_position_embeddings": 131072,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"], "sliding_window": 2048, "use_sliding_window": True,
    "final_logit_softcapping": 30.0, "num_target_layers": 48,
    "dflash_config": {
        "mask_token_id": 4, "target_layer_ids": [1, 12, 23, 34, 45], "block_size": 16, "input_embedding_scale": 61.97,
    },
}  # fmt: skip
RELEASED = {  # the config.json of each, in its file's own dialect
    "Qwen3-4B": QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728},
    "Qwen3-8B": QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288},
    "Qwen3-Coder-30B-A3B": (
        QWEN3
        | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 8, "max_window_layers": 8}
        | {"num_key_value_heads": 4, "num_target_layers": 48, "layer_types": ["full_attention"] * 8}
        | {"dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 12, 23, 34, 45]}}
    ),
    "Llama-3.1-8B": (
        QWEN3
        | {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256, "num_target_layers": 32}
        | {"rope_theta": 500_000.0, "rope_scaling": LLAMA3, "max_position_embeddings": 131072, "block_size": 10}
        | {"dflash_config": {"mask_token_id": 128002, "target_layer_ids": [1, 8, 15, 22, 29]}}
    ),
    "gemma-4-12B": GEMMA | {"hidden_size": 3840, "intermediate_size": 15360},
}
SMALL = {"intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
TARGETS = {
    "Qwen3-Coder-30B-A3B": lambda **kw: Qwen3MoeConfig(num_experts=2, moe_intermediate_size=32, **kw),
    "Llama-3.1-8B": LlamaConfig,
    "gemma-4-12B": lambda **kw: Gemma4TextConfig(
        final_logit_softcapping=30.0, global_head_dim=32, hidden_size_per_layer_input=0, num_kv_shared_layers=0, **kw
    ),
}


def target_for(name: str, config: dict) -> Target:
    """A target of the family, as wide, as deep and with as many tokens as the real one; it holds no data."""
    sizes = {key: config[key] for key in ("hidden_size", "vocab_size")} | SMALL
    made = TARGETS.get(name, Qwen3Config)(num_hidden_layers=config["num_target_layers"], **sizes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made, attn_implementation="sdpa", dtype=torch.bfloat16)
    target = Target(model, None, TargetInfo(name, "none", "bfloat16", 0, "meta"))
    target.fingerprint = lambda: {
        "hidden_size": target.hidden_size, "num_layers": target.layers, "vocab_size": target.vocab_size,
        "tokenizer": "unknown", "weights": "unknown",
    }  # fmt: skip
    return target


def shapes_of(config: dict) -> dict[str, tuple[int, ...]]:
    """The tensors of a released file, by the layout that its makers document."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    taps = len(config["dflash_config"]["target_layer_ids"])
    shapes = {"fc.weight": (hidden, taps * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries), "self_attn.q_norm": (dim,),
            "self_attn.k_norm": (dim,), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        }  # fmt: skip
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def write_empty(path, shapes) -> int:
    """A safetensors file of the given bfloat16 tensors whose data is a hole; returns the bytes of data."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        end = at + 2 * torch.Size(shape).numel()
        header[name], at = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}, end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return at


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("name", RELEASED)
def test_a_released_drafter_loads(tmp_path, name):
    """Real sizes and dialect, two shards and an index: every tensor is read; taps, mask, windows as stated."""
    config = RELEASED[name]
    shapes = shapes_of(config)
    names = sorted(shapes)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    data = sum(write_empty(tmp_path / shard, {n: shapes[n] for n in part}) for shard, part in shards.items())
    weight_map = {n: shard for shard, part in shards.items() for n in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps(config))
    drafter = load_drafter(tmp_path, target_for(name, config))
    assert {n: tuple(v.shape) for n, v in drafter.state_dict().items()} == shapes
    assert drafter.dtype == torch.bfloat16 and data == 2 * sum(p.numel() for p in drafter.parameters())
    taps, dflash = len(drafter.taps), config["dflash_config"]
    assert drafter.taps == tuple(dflash["target_layer_ids"]) == default_taps(config["num_target_layers"], taps)
    assert drafter.block_size == config.get("block_size", dflash.get("block_size"))
    assert drafter.mask_id == dflash["mask_token_id"]
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    assert drafter.config.rope_parameters["rope_theta"] == theta
    assert (drafter.config.rope_parameters["rope_type"] == "llama3") == (name == "Llama-3.1-8B")
    slides = config["layer_types"].count("sliding_attention")
    assert drafter.sights == [Sight(True, 2048)] * slides + [Sight()] * (config["num_hidden_layers"] - slides)
