"""CUDA graphs of the stages of a round."""

from __future__ import annotations

from collections.abc import Callable

import torch

Stages = dict[str, Callable[[], None]]


def captured(stages: Stages, device: torch.device, before: Callable[[], None] = lambda: None) -> Stages:
    """`stages`, each captured as a CUDA graph where `device` is a GPU, and as they are elsewhere.

    Stages run in the order given, on tensors that stay where they are; a stage may use what an earlier one has made. On
    a GPU they are run twice here, behind `before`, which makes the state one that they can start from.
    """
    if device.type != "cuda":
        return stages
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # a capture must find its libraries' handles and workspaces made
        for _ in range(2):
            before()
            for stage in stages.values():
                stage()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    replays, pool = {}, torch.cuda.graph_pool_handle()
    for name, stage in stages.items():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            stage()
        replays[name] = graph.replay
    return replays
