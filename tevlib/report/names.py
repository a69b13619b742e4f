"""What rows, columns and metrics are called in print."""

from tevlib.report.paper import VERIFIERS

SUITE_NAMES = {
    "mt_bench": "MT-Bench",
    "humaneval": "HumanEval",
    "gsm8k": "GSM8K",
    "math500": "MATH-500",
    "average": "Average",
}
METRICS = {"speedup": "SR", "tau": "τ"}
VERIFIER_NAMES = VERIFIERS | {
    "predraw_reference": "Predraw, reference",
    "predraw_lazy": "Predraw, lazy",
    "sequential_residual": "Sequential residual",
    "tev_parallel": "TEV, parallel",
    "tev_descent": "TEV, descent",
    "greedy": "Greedy",
}
METHOD_NAMES = {
    "ddtree": "DDTree",
    "opd": "Draft-OPD",
    "exit": "ExitTrain + TEV",
    "gain": "Gain + TEV (ours, not the paper's)",
    "auto": "Automatic budget (ours, not the paper's)",
    "dflash_chain": "DFlash, greedy chain (not in the paper's tables)",
    "sampled_chain": "DFlash, sampled chain (not in the paper's tables)",
    "prompt_lookup": "Prompt lookup, transformers (not in the paper's tables)",
    "autoregressive": "Root alone, no draft (not in the paper's tables)",
}
OBJECTIVE_NAMES = {
    "original": "Original drafter",
    "finetune": "Finetuned, token loss alone",
    "prefix": "Prefix weight P(v)",
    "exit": "Exit weight w(v)",
    "opd": "Draft-OPD (not in the paper's Table 2)",
    "gain": "Gain (ours, not the paper's)",
}
SHAPE_NAMES = {"own": "this target", "qwen3_4b": "sizes of Qwen3-4B"}
