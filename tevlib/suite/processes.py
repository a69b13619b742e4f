"""The processes that share the prompts of a cell: which of them this one is, what is its share, and all their answers.

`accelerate launch` (on GPUs, one on each) or `torchrun` (on CPUs too) starts them. Without a launcher there is one.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

PATIENCE = timedelta(days=7)  # a process may be done with its share long before the others


def launched() -> PartialState:
    """The processes and which of them this one is; from now on this one's GPU is the current one."""
    return PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


def share(items: Sequence, of: PartialState) -> list[tuple[int, object]]:
    """This process' items with their places: every n-th of n processes."""
    return list(enumerate(items))[of.process_index :: of.num_processes]


def gathered(answers: list[tuple]) -> list[tuple]:
    """The answers of all processes in order of their first entry, in every process; waits for the last of them."""
    return sorted(gather_object(answers), key=lambda answer: answer[0])
