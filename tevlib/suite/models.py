"""Where a cell's target and drafters are, and what its record says of them and of the machine they ran on."""

import hashlib
from pathlib import Path

import torch

from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.target import Target
from tevlib.sources.assets import OFFLINE_TARGET, gguf_path
from tevlib.suite.cells import is_hub_id
from tevlib.suite.code_hash import drafter_digest
from tevlib.suite.paths import from_repository
from tevlib.suite.provenance import provenance


def target_name(name: str) -> str:
    return str(from_repository(name)) if from_repository(name).exists() else name


def local_weights(name: str) -> Path | None:
    """The target's weights where they are on this machine; None for a hub id."""
    if name == OFFLINE_TARGET:
        return gguf_path()
    path = from_repository(name)
    return path if path.exists() else None


def drafter_folder(name: str) -> Path:
    """Folder of a drafter: a local one, or a hub repository's configuration and weights in the hub's own cache."""
    if not is_hub_id(name):
        return from_repository(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))


def device(target: Target) -> dict:
    """What the target ran on: tables do not mix records whose `name` and `threads` differ."""
    if target.device.type == "cuda":
        found = torch.cuda.get_device_properties(target.device)
        return {
            "name": found.name, "threads": None, "count": torch.cuda.device_count(), "memory": found.total_memory,
            "capability": f"{found.major}.{found.minor}", "cuda": torch.version.cuda,
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }  # fmt: skip
    return {"name": provenance()["cpu"], "threads": torch.get_num_threads()}


def target_facts(target: Target) -> dict:
    template = target.tokenizer.chat_template or ""
    return {
        "revision": target.info.revision,
        "parameters": target.info.parameters,
        "dtype": target.info.dtype,
        "attention": target.model.config._attn_implementation,
        "fingerprint": target.fingerprint(),
        "chat_template_sha256": hashlib.sha256(str(template).encode()).hexdigest()[:12],
    }


def drafter_facts(name: str, drafter: DFlashDraftModel | None) -> dict:
    """What a record says of the drafter; nothing where there is none."""
    if drafter is None:
        return {}
    return {
        "block_size": drafter.block_size,
        "sha256": drafter_digest(drafter_folder(name)),
        "dtype": str(drafter.dtype),
    }
