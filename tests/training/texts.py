"""What tests of training share: prompts, the texts that a tiny target makes of them, a quick configuration."""

from tevlib.training.config import TrainConfig
from tevlib.training.rollouts import rollouts

TAPS = (0, 2)
PROMPTS = [[7, 30, 41 + i, 9, *range(60, 60 + i % 4)] for i in range(12)]


def made(target, **changes):
    how = dict(temperature=0.0, max_new_tokens=24, seed=0, rows=5, stop_ids=frozenset({-1})) | changes
    return sorted(rollouts(target, PROMPTS, TAPS, **how), key=lambda r: r.index)


def quick(**changes) -> TrainConfig:
    settings = dict(
        steps=10, sequences=2, anchors=4, learning_rate=3e-3, autocast=False, validate_every=5, save_every=5,
        validation_contexts=4, validation_budgets=(4, 8), validation_temperatures=(1.0,),
    )  # fmt: skip
    return TrainConfig(**settings | changes)


def full_disk(save):
    """`save(what, path)` on a disk that the second file fills: it is cut short and an error raised."""
    calls = []

    def breaks_off(what, path):
        calls.append(path)
        save(what, path)
        if len(calls) > 1:
            path.write_bytes(path.read_bytes()[:100])
            raise OSError("no space left on device")

    return breaks_off
