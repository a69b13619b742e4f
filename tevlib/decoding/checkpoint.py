"""Read and write drafter folders in the DFlash layout: `config.json`, `model.safetensors`, a card.

Tensor names carry no prefix; the embedding and the head are the target's and never in the file. Both spellings of the
rotary parameters are written, because readers older than transformers 5 want `rope_theta` at the top level, and every
layer's kind. Layers of the target are counted from 0, by their outputs; vLLM, which counts inputs, adds one by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from tevlib.decoding.delta import pack, unpack
from tevlib.decoding.draft_vocabulary import DraftVocabulary
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.drafter_config import DELTA_OF, FINGERPRINT, config_json, read_config
from tevlib.decoding.prepacked import PackedLinear, can_pack, pack_linears
from tevlib.decoding.target import Target

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
DELTA = "delta.safetensors"
VOCABULARY = "draft_vocabulary.safetensors"  # ours as well: the tokens that it proposes, where these are not all
MASK_EMBEDDING = "mask_embedding.pt"  # in place of the target's row of the mask id, in vLLM
TARGETS_OWN = ("embed_tokens.weight", "lm_head.weight")  # some writers add them to the file


def save_drafter(
    drafter: DFlashDraftModel,
    folder: Path | str,
    *,
    target: Target,
    card: str = "",
    dtype: torch.dtype = torch.bfloat16,
    delta_of: Path | str | None = None,
) -> Path:
    """The folder, written atomically: weights in `dtype`, configuration, fingerprint of the target, card.

    With `delta_of`, the folder of another drafter, only the difference from that one is kept, rounded to four bits: a
    quarter of the size, for us alone to read, and only while the other stays where it is from here. An earlier drafter
    there is replaced; raises `ValueError` for a folder of anything else.
    """
    folder = Path(folder)
    if folder.exists() and not (folder / CONFIG).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} holds something other than a drafter and is not replaced: choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
    try:
        tensors = {name: value.to(dtype).contiguous().cpu() for name, value in drafter.state_dict().items()}
        weights = WEIGHTS if delta_of is None else DELTA
        if delta_of is not None:
            tensors = pack(drafter.state_dict(), _read_weights(Path(delta_of)))
        save_file(tensors, partial / weights, metadata={"format": "pt"})
        if drafter.vocabulary is not None:
            save_file({"tokens": drafter.vocabulary.tokens.int().cpu()}, partial / VOCABULARY)
        for file in partial.iterdir():
            file.chmod(0o644)
        config = config_json(drafter.config, dtype, target.layers) | {FINGERPRINT: target.fingerprint()}
        if delta_of is not None:
            config[DELTA_OF] = os.path.relpath(delta_of, folder)
        (partial / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        if card:
            (partial / "README.md").write_text(card)
        partial.chmod(0o755)
        replaced = partial.with_name(partial.name.replace("partial", "replaced"))
        if folder.exists():
            folder.rename(replaced)  # whole: deleting takes longer, and what interrupts it would leave half a drafter
        partial.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def load_drafter(path: Path | str, target: Target, *, dtype: torch.dtype | None = None) -> DFlashDraftModel:
    """The drafter in `path`, on the target's device and in its dtype (or `dtype`), frozen and ready to draft.

    Raises `ValueError` naming the fault: no such folder, another architecture, a missing key or tensor, a rotary base
    that is not stated, or a drafter made for another target (tokenizer or shapes differ). Where only the target's
    weights differ, a warning says that tau may fall.
    """
    folder = Path(path)
    raw, config = read_description(folder)
    check_target(raw, config, target, str(folder))
    drafter, tensors = _fitting(config, _without_the_targets_own(_read_weights(folder), target, str(folder)), folder)
    drafter = drafter.to(dtype or target.dtype).to_empty(device=target.device)  # no second copy, no random numbers
    drafter.rotary.reset()
    drafter.load_state_dict(tensors)
    drafter = drafter.eval().requires_grad_(False)
    if isinstance(target.head, PackedLinear) and can_pack(drafter):
        pack_linears(drafter)
    if (folder / VOCABULARY).is_file():
        drafter.vocabulary = _read_vocabulary(folder / VOCABULARY, target)
    return drafter


def read_description(folder: Path) -> tuple[dict, Qwen3Config]:
    """The `config.json` of a drafter's folder as it stands and as it is read; `ValueError` as in `load_drafter`."""
    if not (folder / CONFIG).is_file():
        raise ValueError(f"no drafter at {folder}: a folder with {CONFIG} and {WEIGHTS} is wanted")
    raw = _read_json(folder / CONFIG)
    config = read_config(raw, str(folder))
    if (folder / MASK_EMBEDDING).is_file():
        raise ValueError(f"{folder / MASK_EMBEDDING}: a mask embedding of the drafter's own is not served")
    return raw, config


def read_tensors(folder: Path, config: Qwen3Config) -> dict[str, torch.Tensor]:
    """All tensors of a drafter's folder, whole, whether in one file, in shards or as a difference from another drafter.

    Raises `ValueError` where they are not exactly those that `config` speaks of.
    """
    return _fitting(config, _read_weights(folder), folder)[1]


def _fitting(config: Qwen3Config, tensors: dict, folder: Path) -> tuple[DFlashDraftModel, dict]:
    """An empty drafter (on the meta device) and its tensors. Raises `ValueError` where names or shapes do not fit."""
    with torch.device("meta"):
        drafter = DFlashDraftModel(config)
    names = {name: tuple(value.shape) for name, value in drafter.state_dict().items()}
    missing, unexpected = sorted(names.keys() - tensors.keys()), sorted(tensors.keys() - names.keys())
    if missing or unexpected:
        raise ValueError(f"{folder / WEIGHTS}: missing tensors {missing}, unexpected tensors {unexpected}")
    wrong = [f"{n} {tuple(tensors[n].shape)} for {shape}" for n, shape in names.items() if tensors[n].shape != shape]
    if wrong:
        raise ValueError(f"{folder / WEIGHTS}: tensors of another shape than {CONFIG} says: {', '.join(wrong)}")
    quantised = sorted({str(value.dtype) for value in tensors.values() if not value.is_floating_point()})
    if quantised:
        raise ValueError(f"{folder / WEIGHTS}: weights must be floating-point numbers, some are {', '.join(quantised)}")
    return drafter, tensors


def check_target(raw: dict, config: Qwen3Config, target: Target, where: str) -> None:
    """Raises `ValueError` where the drafter in `raw` was made for another target than `target`."""
    taps, mask = config.dflash_config["target_layer_ids"], config.dflash_config["mask_token_id"]
    cap = config.dflash_config.get("final_logit_softcapping")
    if cap not in (None, target.softcap):
        raise ValueError(
            f"{where}: final_logit_softcapping is {cap}, {target.info.source} has {target.softcap}: drafts go through "
            "the target's own head and cap"
        )
    mine = target.fingerprint()
    stated = {"hidden_size": config.hidden_size, "num_layers": config.num_target_layers, **(raw.get(FINGERPRINT) or {})}
    for key in ("hidden_size", "num_layers", "vocab_size", "tokenizer"):
        if stated.get(key) is not None and stated[key] != mine[key]:
            raise ValueError(
                f"{where} was made for a target with {key} {stated[key]}; {target.info.source} has {mine[key]}"
            )
    if not all(0 <= tap < target.layers for tap in taps) or not 0 <= mask < target.vocab_size:
        raise ValueError(
            f"{where} reads layers {taps} and mask id {mask}; {target.info.source} has {target.layers} layers and "
            f"{target.vocab_size} embedding rows"
        )
    if stated.get("weights") not in (None, mine["weights"]):
        warnings.warn(
            f"{where} was trained on other weights than {target.info.source}: output stays exact, tau may fall",
            stacklevel=3,
        )


def _without_the_targets_own(tensors: dict[str, torch.Tensor], target: Target, where: str) -> dict[str, torch.Tensor]:
    """All but copies of the target's embedding and head. Raises `ValueError` where they are no copies."""
    for name, own in zip(TARGETS_OWN, (target.embed.weight, target.head.weight), strict=True):
        copy = tensors.get(name)
        if copy is not None and not (copy.shape == own.shape and torch.equal(copy.to(own), own)):
            raise ValueError(
                f"{where} has a {name} of its own, other than the target's: a drafter reads and writes the target's "
                "vocabulary through the target's own matrices"
            )
    return {name: value for name, value in tensors.items() if name not in TARGETS_OWN}


def _read_weights(folder: Path, above: tuple[Path, ...] = ()) -> dict[str, torch.Tensor]:
    """All tensors of `folder`; `above`: the folders whose difference from this one is wanted."""
    if (folder / DELTA).is_file():
        stated, above = _read_json(folder / CONFIG).get(DELTA_OF), (*above, folder.resolve())
        if not isinstance(stated, str):
            raise ValueError(f"{folder / DELTA}: {DELTA_OF} in {CONFIG} must be the base's folder, got {stated!r}")
        base = (folder / stated).resolve()
        if base in above or not (base / CONFIG).is_file():
            raise ValueError(f"{folder / DELTA} is a difference from the drafter at {base}, and none is there")
        try:
            return unpack(_load(folder / DELTA), _read_weights(base, above))
        except ValueError as error:
            raise ValueError(f"{folder / DELTA}: {error}") from error
    if (folder / WEIGHTS).is_file():
        return _load(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder} has neither {WEIGHTS} nor {INDEX}")
    where = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(shard, str) for shard in where.values()):
        raise ValueError(f"{folder / INDEX}: weight_map must say in which file each tensor is, got {where!r:.200}")
    shards = sorted(set(where.values()))
    absent = [shard for shard in shards if not (folder / shard).is_file()]
    if absent:
        raise ValueError(f"{folder}: missing shards {', '.join(absent)}")
    return {name: value for shard in shards for name, value in _load(folder / shard).items()}


def _read_vocabulary(path: Path, target: Target) -> DraftVocabulary:
    tensors = _load(path)
    if set(tensors) != {"tokens"}:
        raise ValueError(f"{path} must hold one tensor, tokens; it holds {', '.join(sorted(tensors)) or 'none'}")
    try:
        return DraftVocabulary(tensors["tokens"], target)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not whole: {error}") from error


def _read_json(path: Path) -> dict:
    try:
        read = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged or not whole: {error}") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(read).__name__}")
    return read
