"""How large a target is, as far as can be said without loading it: by its files here, else by its name."""

import re

from tevlib.sources import assets
from tevlib.suite.memory import FOLDER_FACTOR, GGUF_FACTOR
from tevlib.suite.paths import from_repository

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DRAFTER_SHARE = 1 / 8  # of its target's active weights: released drafters have 0.5B (4B, 30B-A3B) and 1B (8B)


def parameters(target: str, dtype: str = "bfloat16") -> tuple[float, float] | None:
    """Parameters of a target, all and those active for one token; None where neither files nor name say.

    A name says it as `Qwen3-4B`, `gemma-4-12b-it`, `SmolLM2-135M` or, with experts, `30B-A3B` do.
    """
    path = from_repository(target)
    files = [path] if path.suffix == ".gguf" else sorted(path.glob("*.safetensors"))
    if path.exists() and files:
        size = sum(file.stat().st_size for file in files)
        count = size * 8 / 4.5 if path.suffix == ".gguf" else size / BYTES[dtype]
        return count, count
    name = target.rsplit("/", 1)[-1]
    sizes = [
        (float(n), unit.upper()) for n, unit in re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)([bBmM])(?![a-zA-Z0-9])", name)
    ]
    if not sizes:
        return None
    count = max(_count(*size) for size in sizes)
    active = re.search(r"-A(\d+(?:\.\d+)?)([BM])(?![a-zA-Z0-9])", name)
    return count, _count(float(active[1]), active[2]) if active else count


def memory_bytes(target: str, dtype: str) -> int | None:
    """About the memory that a target takes at work, with what a pass over a tree needs; None where nothing says."""
    if target == assets.OFFLINE_TARGET:
        return GGUF_FACTOR * assets.GGUF_BYTES
    path = from_repository(target)
    if path.suffix == ".gguf" and path.is_file():
        return GGUF_FACTOR * path.stat().st_size
    found = parameters(target, dtype)
    return None if found is None else int(FOLDER_FACTOR * found[0] * BYTES[dtype])


def download_bytes(model: str) -> int | None:
    """About the size of a hub model's weights, in 16 bits, by its name; None where that does not say.

    A drafter's name (`...DFlash`, `...Draft...`) says how large its target is.
    """
    if (found := parameters(model)) is None:
        return None
    return int(2 * (DRAFTER_SHARE * found[1] if re.search("dflash|draft", model.lower()) else found[0]))


def _count(number: float, unit: str) -> float:
    return number * (1e9 if unit == "B" else 1e6)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
