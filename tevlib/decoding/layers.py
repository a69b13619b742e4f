"""What the layers of a target keep, read from its configuration: kinds, windows, key heads and their sizes, devices.

And which targets are refused, because a tree pass over them would not give what a plain pass gives.
"""

from __future__ import annotations

import torch

from tevlib.decoding.cache import LayerKeys

FULL, SLIDING = "full_attention", "sliding_attention"
RECURRENT = "a recurrent state holds one path, not a tree, and cannot be rolled back"
OFFLOADED = ("cpu", "disk")  # places of a device map that hold weights; what computes is the first other one
WHY_NOT = {
    "linear_attention": RECURRENT,
    "conv": RECURRENT,
    "chunked_attention": "what a token sees there ends at multiples of a chunk, which is not served",
}
CHANGING = {"dynamic", "longrope"}  # rotary embeddings whose frequencies are those of the longest text so far
STATES = {"mamba_d_state", "mamba_d_conv", "ssm_state_size", "state_size", "lru_width", "conv_L_cache"}  # sizes of them


def layer_kinds(config) -> list[str]:
    """`full_attention`, `sliding_attention` or another kind for every layer of a text configuration.

    A configuration that names no kinds has a window in all of its layers or in none.
    """
    values = config.to_dict()
    everywhere = SLIDING if values.get("sliding_window") is not None else FULL
    return list(values.get("layer_types") or [everywhere] * config.num_hidden_layers)


def rope_types(config) -> set[str]:
    """How rotary frequencies are made, by the configuration; of every kind of layer where it says so for each."""
    rope = config.to_dict().get("rope_parameters") or {}
    parts = rope.values() if all(isinstance(part, dict) for part in rope.values()) else [rope]
    return {part.get("rope_type", "default") for part in parts}


def layer_keys(config, devices: list[torch.device]) -> list[LayerKeys | None]:
    """What every layer keeps in a key/value store; `None` for the last layers where they read an earlier one's keys."""
    kinds, values = layer_kinds(config), config.to_dict()
    shared = values.get("num_kv_shared_layers") or 0
    kept = []
    for kind, layer, device in zip(kinds, config.per_layer_config, devices, strict=True):
        size = layer.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
        window = values["sliding_window"] if kind == SLIDING else None
        kept.append(LayerKeys(layer.num_key_value_heads, size, device, window))
    return [*kept[: len(kept) - shared], *[None] * shared]


def device_map_of(model) -> dict[str, int | str | torch.device]:
    """Which module of a dispatched `model` is where; empty where all of it is on one device."""
    return vars(model).get("hf_device_map") or {}


def layer_devices(model) -> list[torch.device]:
    """The device on which every layer of `model` computes, which under a device map is not one for all.

    Layers that are offloaded to memory or disk compute on the first device that the map names, else on the CPU.
    """
    layers, places = model.get_decoder().layers, device_map_of(model)
    if not places:
        return [model.get_output_embeddings().weight.device] * len(layers)
    names = {module: name for name, module in model.named_modules()}
    computing = next((place for place in places.values() if place not in OFFLOADED), "cpu")
    devices = []
    for layer in layers:
        name = names[layer]
        parts = [name[: len(name) - i] for i in range(len(name) + 1)]
        place = next((places[part] for part in parts if part in places), None)
        if place is None:
            raise ValueError(f"the device map splits the layer {name}: give each layer one device")
        devices.append(torch.device(computing if place in OFFLOADED else place))
    return devices


def refuse_inexact(config, model_class=None, generation=None) -> None:
    """Raises `ValueError` for a target whose tree pass would not be exact, by its name and with the reason.

    `config` is the text configuration; the class of its model and its generation settings say more, where known.
    """
    values = config.to_dict()

    def refuse(reason: str):
        raise ValueError(f"{values.get('model_type')} is not served: {reason}")

    if values.get("is_encoder_decoder"):
        refuse("it is an encoder and a decoder; targets are decoders alone")
    if states := sorted(STATES & values.keys()):
        refuse(f"it has layers with a state ({', '.join(states)}): {RECURRENT}")
    for kind in sorted(set(layer_kinds(config)) - {FULL, SLIDING}):
        why = WHY_NOT.get(kind, "only full and sliding attention are exact on a tree")
        refuse(f"it has layers of kind {kind}: {why}")
    if model_class is not None and model_class._is_stateful:
        refuse(RECURRENT)
    if values.get("alibi"):
        refuse("its attention is biased by distance (ALiBi); targets have rotary positions")
    if "num_key_value_heads" not in {*values, *(config.per_layer_attributes or ())}:
        refuse(
            "its configuration states no num_key_value_heads; targets with rotary, grouped-query attention (Llama, "
            "Qwen, Gemma) are"
        )
    for kind in sorted(rope_types(config) & CHANGING):
        refuse(f"its rotary frequencies change with the length of the text ({kind}), for nodes of one pass together")
    if values.get("kv_lora_rank"):
        refuse("it keeps latent keys (kv_lora_rank), of other shapes than its heads say")
    if values.get("altup_num_inputs"):
        refuse("its layers carry several streams (altup_num_inputs), a drafter reads one")
    if values.get("attn_logit_softcapping") is not None:
        refuse("it soft-caps attention scores (attn_logit_softcapping), which fused attention does not do")
    if values.get("use_bidirectional_attention") in (True, "all"):
        refuse("its tokens see later ones (use_bidirectional_attention); targets are causal")
    in_file = (values.get("quantization_config") or {}).get("kv_cache_scheme")
    if in_file is not None or (generation is not None and generation.cache_implementation == "quantized"):
        refuse("its keys and values are quantised, so that what a tree sees would not be what the model computes")
