"""A drafter's `config.json` <-> `Qwen3Config`: both spellings, nested keys before top-level ones, nothing guessed.

A key that changes the computation is either computed here or refused by its name: a drafter that loads drafts as it was
trained to.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import Qwen3Config

FINGERPRINT = "tevlib_target"  # our own key in config.json: what the drafter was trained on
DELTA_OF = "tevlib_delta_of"  # another: the folder, seen from this one, of the drafter that a difference is from

REQUIRED = ("target_layer_ids", "mask_token_id", "block_size")
SCALES = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")
COUNTS = (
    "block_size", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads",
    "num_hidden_layers", "num_key_value_heads", "num_target_layers", "vocab_size",
)  # fmt: skip
OBJECTS = ("dflash_config", "rope_parameters", "rope_scaling", FINGERPRINT)
KNOWN = {*REQUIRED, *SCALES, "num_target_layers", "causal", "is_causal"}
REFUSED = {  # keys that are met in the wild, and what they ask for
    "attention_sink_bias": "an attention sink",
    "attention_value_scale": "scaled values",
    "conv_group_size": "the convolutions of DFlash 2",
    "conv_kernel_size": "the convolutions of DFlash 2",
    "draft_vocab_size": "a vocabulary of the drafter's own",
    "fc_norm": "a norm before fc",
    "markov_rank": "scores that depend on the token before",
    "projector_type": "another projection of the target's features",
    "pure_draft_prefix_len": "rows drafted before the anchor",
    "quantization_config": "quantised weights",
    "sample_from_anchor": "a prediction by the anchor's own row",
    "selector_rank": "the candidate selector of DFlash 2",
    "selector_top_k": "the candidate selector of DFlash 2",
    "shift_label": "rows that predict the next position",
    "sliding_window_non_causal": "two-sided windows",
    "swa_window_size": "a window that layer_types does not state",
    "target_hidden_size": "features of another width than the drafter's",
    "use_swa": "a window that layer_types does not state",
}
ROTARIES = ("default", "linear", "llama3", "proportional", "yarn")  # of frequencies that no length of a text changes
OTHERS = {  # architectures near DFlash's, and what they are
    "DFlash2DraftModel": "DFlash 2: convolutions in every layer, candidates scored along the path",
    "Gemma4DSparkModel": "DSpark: another drafter",
    "Qwen3DSparkModel": "DSpark: another drafter",
    "QwenDFlashDraftModel": "AngelSlim's form of DFlash",
    "Qwen3DFlashDraftModel": "NeMo's form of DFlash",
    "DFlashSpeculator": "the form of vLLM's speculators: nested configuration, layers counted from 1",
}


class Sight(NamedTuple):
    """What a layer's rows see, by position: everything, or what is not behind them, or what is near them."""

    causal: bool = False
    window: int | None = None

    @property
    def masks(self) -> bool:
        """Whether there is anything that a row does not see."""
        return self.causal or self.window is not None

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Boolean `[..., n, m]`: which of the positions `keys [..., m]` each of `queries [..., n]` sees."""
        distance = queries[..., :, None] - keys[..., None, :]
        seen = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        return seen if self.window is None else seen & (distance.abs() < self.window)


def sights(config: Qwen3Config) -> list[Sight]:
    """What each layer sees: a sliding layer the last `sliding_window` positions, itself and what it follows.

    `is_causal`, where stated, decides for all layers instead, as in the `dflash` package; else the key `causal` of
    `dflash_config`, as in vLLM. Unstated, sliding layers are causal and the others are not.
    """
    stated = config.to_dict().get("is_causal")
    if stated is None:
        stated = config.dflash_config.get("causal")
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    return [Sight(s if stated is None else bool(stated), config.sliding_window if s else None) for s in slides]


def read_config(raw: dict, where: str) -> Qwen3Config:
    """A `Qwen3Config` from a `config.json` of this layout; `where` names it in errors.

    Raises `ValueError` for another architecture, a key in `REFUSED` or an unknown one of `dflash_config`, an absent
    layer list, mask id, block size or rotary base, and values that cannot be.
    """
    for key in OBJECTS:
        if not isinstance(raw.get(key), dict | None):
            raise ValueError(f"{where}: {key} must be an object, got {raw[key]!r}")
    _refuse_other_architectures(raw, where)
    nested = dict(raw.get("dflash_config") or {})
    _refuse_keys(raw, nested, where)
    found = {key: nested.get(key, raw.get(key)) for key in (*REQUIRED, *SCALES, "num_target_layers")}
    _check_values(raw, found, where)
    causal = [v for v in (raw.get("is_causal"), nested.get("is_causal"), nested.get("causal")) if v is not None]
    if strange := [v for v in causal if not isinstance(v, bool)]:
        raise ValueError(f"{where}: is_causal and dflash_config.causal are true or false, got {strange[0]!r}")
    if len(set(causal)) > 1:
        raise ValueError(f"{where}: is_causal and dflash_config.causal contradict each other")
    skip = {"rope_theta", "rope_scaling", "rope_parameters", "auto_map", "transformers_version"}
    skip |= {"dflash_config", "is_causal", "dtype", "torch_dtype", FINGERPRINT, DELTA_OF, *found}
    values = {k: v for k, v in raw.items() if k not in skip}
    values |= {"rope_parameters": _rope(raw, where)} | ({"is_causal": causal[0]} if causal else {})
    try:
        config = Qwen3Config(
            **values,
            block_size=found.pop("block_size"),
            num_target_layers=found.pop("num_target_layers"),
            dflash_config={k: v for k, v in found.items() if v is not None},
        )
    except (StrictDataclassError, KeyError) as error:  # of other types, a rotary scaling with parts missing
        raise ValueError(f"{where}: {error.args[0]}") from error
    window = raw.get("sliding_window")
    in_force = config.use_sliding_window and isinstance(window, int) and window >= 1
    if "sliding_attention" in config.layer_types and not in_force:
        raise ValueError(
            f"{where}: layers slide, but no window is in force: use_sliding_window must be true and sliding_window an "
            f"integer >= 1, got {config.use_sliding_window} and {window}"
        )
    return config


def config_json(config: Qwen3Config, dtype: torch.dtype, target_layers: int) -> dict:
    """The contents of a `config.json` that the `dflash` package, vLLM and SGLang read, of whatever age.

    Both rotary spellings, every layer's kind, `block_size` and `num_target_layers` at the top level, taps and mask id
    in `dflash_config`, a stated causality in both places. No `auto_map`: no code is shipped with the weights.
    """
    rope = dict(config.rope_parameters)
    theta = rope.pop("rope_theta")
    values = config.to_diff_dict()
    if values.get("is_causal") is not None:
        values["dflash_config"] = config.dflash_config | {"causal": values["is_causal"]}
    return values | {
        "model_type": "qwen3",
        "architectures": ["DFlashDraftModel"],
        "dtype": str(dtype).removeprefix("torch."),
        "rope_theta": theta,
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else rope,
        "num_target_layers": target_layers,
    }


def _refuse_other_architectures(raw: dict, where: str) -> None:
    architectures = raw.get("architectures") or []
    if architectures == ["DFlashDraftModel"]:
        return
    names = [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    known = [f"{name} is {OTHERS[name]}" for name in names if name in OTHERS]
    if any(name.endswith("ForCausalLM") for name in names):
        known = ["that is a target, or a drafter saved through a class of transformers: load_target reads targets"]
    raise ValueError(
        f"{where}: architectures is {architectures}, only ['DFlashDraftModel'] is read"
        + (f" ({'; '.join(known)})" if known else "")
    )


def _refuse_keys(raw: dict, nested: dict, where: str) -> None:
    stated = {**{k: v for k, v in raw.items() if k in REFUSED}, **nested}
    neutral = {"attention_value_scale": 1, "draft_vocab_size": raw.get("vocab_size")}
    neutral["target_hidden_size"] = raw.get("hidden_size")
    changing = [
        f"{key} ({REFUSED.get(key, 'unknown')})"
        for key, value in sorted(stated.items())
        if key not in KNOWN and value not in (None, False, 0) and value != neutral.get(key)
    ]
    if changing:
        raise ValueError(f"{where}: keys that change the computation and are not served: {', '.join(changing)}")


def _check_values(raw: dict, found: dict, where: str) -> None:
    for key in REQUIRED:
        if found[key] is None:
            raise ValueError(
                f"{where}: config.json lacks {key}; it is not guessed, since a wrong guess loads in silence"
            )
    for key in COUNTS:
        value = found.get(key, raw.get(key))
        if value is not None and not (type(value) is int and value >= 1):
            raise ValueError(f"{where}: {key} must be an integer >= 1, got {value!r}")
    taps, mask = found["target_layer_ids"], found["mask_token_id"]
    if not isinstance(taps, list) or not taps or not all(type(tap) is int for tap in taps):
        raise ValueError(f"{where}: target_layer_ids must be a list of layers such as [1, 9, 17], got {taps!r}")
    if type(mask) is not int:
        raise ValueError(f"{where}: mask_token_id must be a token id, got {mask!r}")
    for key in SCALES:
        if found[key] is not None and not _positive(found[key]):
            raise ValueError(f"{where}: {key} must be a positive number, got {found[key]!r}")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{where}: hidden_act is {raw['hidden_act']!r}, only 'silu' is computed")
    kinds, layers = raw.get("layer_types"), raw.get("num_hidden_layers")
    if not isinstance(kinds, list | None) or not all(isinstance(kind, str) for kind in kinds or ()):
        raise ValueError(f"{where}: layer_types must list the kind of every layer, got {kinds!r}")
    if kinds is not None and len(kinds) != layers:
        raise ValueError(f"{where}: layer_types lists {len(kinds)} layers, num_hidden_layers is {layers}")
    if unknown := set(kinds or ()) - {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"{where}: layers of kind {', '.join(sorted(unknown))}: only full_attention and sliding_attention are "
            "served"
        )


def _rope(raw: dict, where: str) -> dict:
    rope = dict(raw.get("rope_parameters") or {})
    if kinds := sorted(key for key, value in rope.items() if isinstance(value, dict)):
        raise ValueError(
            f"{where}: rope_parameters are those of kinds of layers ({', '.join(kinds)}), a drafter's layers share one"
        )
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    if theta is None:
        raise ValueError(f"{where}: config.json has neither rope_parameters.rope_theta nor rope_theta")
    if not _positive(theta):
        raise ValueError(f"{where}: rope_theta must be a positive number, got {theta!r}")
    scaling = dict(raw.get("rope_scaling") or {})
    for part in (scaling, rope):
        if "type" in part:
            part.setdefault("rope_type", part.pop("type"))
    read = {"rope_type": "default", **scaling, **rope, "rope_theta": theta}
    if read["rope_type"] not in ROTARIES:
        raise ValueError(
            f"{where}: rope_type is {read['rope_type']!r}, not one of {', '.join(ROTARIES)}, whose frequencies no "
            "length of a text changes"
        )
    if read["rope_type"] == "default" and "factor" in read:
        raise ValueError(f"{where}: a rotary factor of {read['factor']} without the rope_type that it belongs to")
    return read


def _positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf
