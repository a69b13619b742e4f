"""tevlib: exit-guided speculative decoding, from draft trees to every table of the paper.

The floors, from the ground up (imports run downwards only):

    trees, sources      draft trees, exit law, verifiers | where prompts and weights come from
    decoding            target, cache, drafter, the decode loop
    training            objectives, rollouts, the training loop
    explorer            pictures of trees
    suite               what is run and what is kept
    report              records -> tables and figures
    cli                 python -m tevlib ...
"""

__version__ = "0.1.0"
