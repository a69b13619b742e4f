"""Every choice of a training run, with the paper's value where it states one and the reason for ours."""

from __future__ import annotations

from dataclasses import dataclass

from tevlib.training.objectives import GAIN_SHARES, OBJECTIVES, check_objective

# What a small search found best at 32 nodes (docs/measurements.md). Exit and prefix average over nodes whose weights
# sum to at most 1 a tree, so that only a lambda of the order of the budget is felt; gain is a mean like the token loss.
DEFAULT_GUIDANCE = {"exit": 32.0, "prefix": 32.0, "gain": 1.0}


@dataclass(frozen=True)
class TrainConfig:
    """Every choice of a training run. Where the paper is silent, the value of the reference recipe is named."""

    objective: str = "base"  # one of `OBJECTIVES`
    steps: int = 4000  # paper: hours on 7 GPUs; here what an hour of two cores allows
    sequences: int = 8  # per step, over all processes (paper: batch size 4)
    accumulate: int = 1  # passes that a process takes for its share of them: more passes, less memory
    anchors: int = 16  # blocks per sequence (reference: 512 on sequences of 3,072 tokens)
    gamma: float = 4.0  # decay of L_tok with depth (reference: 7 for blocks of 16, 4 for blocks of 8)
    learning_rate: float = 1e-3  # from scratch; the paper fine-tunes with 1e-4
    warmup: float = 0.04  # share of the steps, linear, then a cosine to 0 (reference: 0.04)
    weight_decay: float = 0.0  # reference: 0
    clip: float = 1.0  # global gradient norm (reference: 1)
    seed: int = 0
    autocast: bool = True  # bfloat16 matrix products over float32 master weights
    guidance: float | None = None  # lambda of Eq. 15 (paper: silent); None: `DEFAULT_GUIDANCE` of the objective
    token_weight: float = 1.0  # of L_tok beside the guidance; 0: the guidance alone
    trees: int = 4  # draft trees per sequence and step, at some of its anchors (paper: silent)
    tree_budget: int = 32  # their non-root nodes (paper: 64)
    tree_temperature: float = 1.0  # of the target's law on them (paper: silent)
    horizon_leaves: bool = True  # exit and prefix: nodes at the last depth weigh too (paper: silent)
    gain_share: str = "all"  # gain: all children, or the missing or present ones, or the root row alone
    gain_guidance: float = 0.0  # exit: weight of gain (ours) beside it
    gain_floor: float = 1e-3  # gain: nodes of smaller P(v) are skipped
    opd_decay: float = 0.8  # opd: of rejected tokens with depth (its published recipe)
    online: bool = False  # features from a target pass in every step, not from the rollouts (the paper: online)
    key_store_gb: float = 0.0  # memory for the sequences' keys and values, so that only tree nodes pass the target
    validate_every: int = 1000
    save_every: int = 100
    validation_contexts: int = 96
    validation_budgets: tuple[int, ...] = (16, 32, 64)
    validation_temperatures: tuple[float, ...] = (0.0, 1.0)
    tensorboard: bool = False  # curves for TensorBoard too (needs the package)

    def __post_init__(self):
        check_objective(self.objective)
        for name in (
            "steps", "sequences", "accumulate", "anchors", "save_every", "validate_every", "validation_contexts",
            "trees", "tree_budget",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "guidance", "token_weight", "gain_guidance", "gain_floor", "tree_temperature", "key_store_gb",
            "weight_decay",
        ):  # fmt: skip
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a finite number >= 0, got {getattr(self, name)}")
        if not any(self.losses().values()):
            raise ValueError(f"objective {self.objective} with these weights has nothing to learn: all of them are 0")
        if self.gain_share not in GAIN_SHARES:
            raise ValueError(f"gain_share must be one of {', '.join(GAIN_SHARES)}, got {self.gain_share!r}")
        if not 0 < self.opd_decay <= 1:
            raise ValueError(f"opd_decay must lie in (0, 1], got {self.opd_decay}")
        budgets, temperatures = self.validation_budgets, self.validation_temperatures
        if not budgets or min(budgets) < 0 or not temperatures or min(temperatures) < 0:
            raise ValueError(
                f"validation needs budgets and temperatures >= 0, got {list(budgets)} and {list(temperatures)}"
            )
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps in [0, 1), got {self.warmup}")

    def losses(self) -> dict[str, float]:
        """The losses that are added up, with their weights. A weight of 0 is left out: then it is as if not there."""
        weights = {"token": self.token_weight, "opd": 1.0}
        guidance = DEFAULT_GUIDANCE.get(self.objective, 0.0) if self.guidance is None else self.guidance
        named = {part: weights.get(part, guidance) for part in OBJECTIVES[self.objective][1]}
        if self.objective == "exit":
            named["gain"] = self.gain_guidance
        return {part: weight for part, weight in named.items() if weight > 0}
