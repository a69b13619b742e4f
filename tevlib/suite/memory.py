"""A look at the free memory before a model is loaded: an error now instead of a killed kernel in the middle."""

from pathlib import Path

GGUF_FACTOR = 13  # two float32 copies of 4- to 5-bit weights while the file is converted
FOLDER_FACTOR = 1.5  # the weights, and what a pass over a tree needs beside them


def needed_bytes(weights: Path) -> int:
    """About how much memory loading the target at `weights` (a GGUF file or a folder of safetensors) takes."""
    if weights.is_file():
        return GGUF_FACTOR * weights.stat().st_size
    return int(FOLDER_FACTOR * sum(file.stat().st_size for file in weights.glob("*.safetensors")))


def available_bytes() -> int | None:
    """Memory that the system can give without swapping; None where it does not say (anywhere but Linux)."""
    info = Path("/proc/meminfo")
    if not info.is_file():
        return None
    for line in info.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def check_memory(weights: Path, available: int | None) -> None:
    """Raises `ValueError` where the target at `weights` will hardly fit into `available` bytes."""
    needed = needed_bytes(weights)
    if available is not None and needed > available:
        raise ValueError(
            f"{weights.name} needs about {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are free: "
            "close other programs or choose a smaller target"
        )
