"""Load a target: a hub id, a local folder, a GGUF file, or the offline default."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from tevlib.decoding.attention import NAME
from tevlib.decoding.layers import device_map_of, refuse_inexact
from tevlib.decoding.prepacked import can_pack, measured_paths, pack_linears
from tevlib.decoding.target import Target, TargetInfo
from tevlib.sources.assets import OFFLINE_TARGET, cache_dir, gguf_path

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_target(
    name_or_path: str | Path = OFFLINE_TARGET,
    dtype: str = "bfloat16",
    device: str | None = None,
    revision: str | None = None,
    device_map: str | dict | None = None,
) -> Target:
    """The frozen `Target` for a hub id, a folder, a `.gguf` file or `"SmolLM2-135M-Instruct"` (the offline default).

    `dtype` is one of float32, bfloat16, float16; `device` defaults to the GPU if there is one. For a target that does
    not fit one device, `device_map` takes what Accelerate takes: "auto", or a dict from modules to devices, "cpu" and
    "disk" included; keys and values then stay with their layers, and a drafter belongs beside the head
    (`Target.device`). GGUF files are dequantised once and kept in the cache. Raises `ValueError` for what is neither a
    file, a folder nor a hub id that can be reached, for architectures that cannot be served exactly, and for a map
    that offloads the embedding or the head.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if device_map is not None and device is not None:
        raise ValueError(f"give device {device!r} or a device_map, not both")
    device = _device(device)
    if isinstance(device_map, dict):
        for place in sorted({str(place) for place in device_map.values()} - {"disk"}):
            _device(f"cuda:{place}" if place.isdigit() else place)
    name = str(name_or_path)
    if name == OFFLINE_TARGET:
        folder, revision = converted_gguf(gguf_path())
    elif name.endswith(".gguf"):
        if not Path(name).is_file():
            raise ValueError(f"no GGUF file at {name}")
        folder, revision = converted_gguf(Path(name))
    elif Path(name).is_dir():
        folder, revision = Path(name), "local folder"
    elif name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise ValueError(f"no folder at {name}: give a folder, a .gguf file, a hub id, or {OFFLINE_TARGET}")
    else:
        folder = name
    try:
        config = AutoConfig.from_pretrained(folder, revision=None if isinstance(folder, Path) else revision)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name!r} is neither a folder, a .gguf file, nor a hub id that can be reached from here "
            f"(offline, {OFFLINE_TARGET} is always there): {str(error).splitlines()[0]}"
        ) from error
    if "DFlashDraftModel" in (config.architectures or ()) or "dflash_config" in config.to_dict():
        raise ValueError(
            f"{name} is a DFlash drafter, not a target: it has no embedding and no head, and a class such as AutoModel "
            "would go on with random ones; load the target here and the drafter with load_drafter"
        )
    where = {} if isinstance(folder, Path) else {"revision": revision}
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    refuse_inexact(config.get_text_config(), model_class)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, and every round has another
    offload = None if device_map is None else _scratch_folder()
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[dtype],
            attn_implementation=NAME if torch.device(device).type == "cpu" else "sdpa",
            output_loading_info=True,
            device_map=device_map,
            offload_folder=offload and offload.name,
            **where,
        )
    except OSError as error:
        raise ValueError(f"the weights of {name} cannot be read: {str(error).splitlines()[0]}") from error
    if loading["missing_keys"]:  # transformers would go on with random ones
        raise ValueError(f"{name} lacks the tensors {', '.join(sorted(loading['missing_keys']))}")
    model = model.eval().requires_grad_(False)
    if device_map is None:
        model = model.to(device)
    else:
        weakref.finalize(model, offload.cleanup)
        refuse_offloaded(model)
        places = device_map_of(model).values() or [model.device]
        device = ", ".join(dict.fromkeys(str(place) for place in places))
    tokenizer = AutoTokenizer.from_pretrained(folder, **where)
    info = TargetInfo(
        source=name,
        revision=revision if isinstance(folder, Path) else hub_commit(name, revision),
        dtype=dtype,
        parameters=sum(p.numel() for p in model.parameters()),
        device=device,
        products=choose_products(model),
    )
    target = Target(model, tokenizer, info)
    check_logits(target)
    return target


def hub_commit(name: str, revision: str | None = None) -> str:
    """The commit of a hub model that the hub's cache has for `revision` (a branch, a tag; None: the main branch), else
    the revision as it was given, or "unknown"."""
    found = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent.name if isinstance(found, str) else revision or "unknown"


def choose_products(model: torch.nn.Module) -> str:
    """How products with the weights of a frozen `model` are done from now on: the fastest path of the same dtype.

    On a CPU the paths are measured on one of its matrices, and the answer says what came out; it also says where
    float32, which is for the caller to choose, would be faster.
    """
    weights = [m.weight for m in model.get_decoder().modules() if isinstance(m, torch.nn.Linear)]
    largest = max(weights, key=torch.Tensor.numel)
    if any(weight.device.type == "meta" for weight in weights):  # offloaded: they come and go
        return "plain"
    if largest.device.type != "cpu" or largest.dtype != torch.bfloat16:
        return "plain"
    packable = can_pack(model)
    seconds = {name: time for name, time in measured_paths(largest).items() if packable or name != "packed"}
    fastest = min(seconds.keys() - {"float32"}, key=seconds.__getitem__)
    if fastest == "packed":
        pack_linears(model)
    slower = {name: seconds[fastest] / value for name, value in seconds.items() if name != fastest}
    words = f"{fastest} ({', '.join(f'{ratio:.2f} of the time of {name}' for name, ratio in slower.items())})"
    return words + ("; dtype='float32' is faster here" if slower["float32"] > 1 else "")


def _scratch_folder() -> tempfile.TemporaryDirectory:
    """A new folder in the cache for weights that a map sends to disk in another form than the file's (experts')."""
    folder = cache_dir() / "offloaded"
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=folder)


def refuse_offloaded(model: torch.nn.Module) -> None:
    """Raises `ValueError` for a dispatched model whose embedding, last norm or head is not in a device's memory.

    Drafters read all three, and outside of the model's own pass.
    """
    parts = {"embedding": model.get_input_embeddings(), "last norm": model.get_decoder().norm}
    for part, module in (parts | {"head": model.get_output_embeddings()}).items():
        if module.weight.device.type == "meta":
            raise ValueError(
                f"the device map offloads the {part}, which drafters read: give it a device "
                f"(the map was {device_map_of(model)})"
            )


def _device(name: str | None) -> str:
    """`name`, or the GPU if there is one. Raises `ValueError` for a device that is not there."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return name


@torch.inference_mode()
def check_logits(target: Target) -> None:
    """Raises `ValueError` where the model's own forward pass gives other logits than `Target`: a scaled head, say.

    Its own is with transformers' plain attention, which knows of whatever a family adds to the scores.
    """
    ids = torch.arange(min(4, target.vocab_size), device=target.device)
    ours, _ = target.prefill(target.new_cache(len(ids)), ids)
    model = target.model
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    theirs = model(input_ids=ids[None], use_cache=False).logits[0, -1].float().to(ours.device)
    model.set_attn_implementation(attention)
    difference, size = float((ours - theirs).abs().max()), float(theirs.abs().max())
    if difference > 0.25 * size:
        raise ValueError(
            f"{target.info.source}: its own forward pass and ours differ by {difference:.3g} in logits of up to "
            f"{size:.3g}; a {target.config.model_type} does more between its last layer and its logits than is served"
        )


def converted_gguf(path: Path) -> tuple[Path, str]:
    """Folder of the safetensors form of a GGUF file, and the file's sha256; converts once, atomically."""
    digest = _sha256(path)
    folder = cache_dir() / "targets" / f"{path.stem}-{digest[:12]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
        try:
            _convert(path, partial)
            os.replace(partial, folder)
        except OSError:
            if not folder.is_dir():  # another process may have finished it first
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder, f"sha256:{digest[:12]}"


def _convert(path: Path, out: Path) -> None:
    """Write the dequantised model (float32) and its tokenizer to `out`."""
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config  # it stays behind after dequantisation and would forbid saving
    clean = AutoModelForCausalLM.from_config(config)
    clean.load_state_dict(loaded.state_dict())
    clean.generation_config = loaded.generation_config
    clean.save_pretrained(out)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(out)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
