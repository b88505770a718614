"""How a swarm's peers run: as processes, or all in this one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dada.cli.console import stderr
from dada.cli.swarm.live import Live
from dada.net.home import Home
from dada.net.kernels import lean_environment
from dada.net.links import LinkOptions
from dada.net.node import Node
from dada.net.runner import RunOptions, open_node
from dada.net.swarm import Swarm
from dada.net.ticket import read_ticket

LOOK_EVERY_S = 1.0
# How long a killed peer stays away.
AWAY_S = 1.0
OPTIONS = RunOptions()
# Dials under way at once in a process of many peers.
MOST_DIALS = 8


def run_processes(homes: Sequence[Home], seconds: float, live: Live, kill_every: float | None, seed: int) -> None:
    """Run each peer as a process, and kill some if asked to."""
    environment = lean_environment(homes[0].read_samples(), say=stderr().print)
    swarm = Swarm(homes, OPTIONS, np.random.default_rng(seed), environment)
    try:
        swarm.start()
        with live:
            _watch(swarm, seconds, live, kill_every)
    finally:
        running = swarm.statuses()
        swarm.stop()
        # The last words of a peer are its final counts; that it was up is what it was before it was stopped.
        final = [last | {"running": status["running"]} for last, status in zip(swarm.statuses(), running, strict=True)]
        live.restarts, live.errors = swarm.restarts, swarm.errors
        live.show(homes, final, 0.0)


def _watch(swarm: Swarm, seconds: float, live: Live, kill_every: float | None) -> None:
    homes = [child.home for child in swarm.children]
    begin = time.monotonic()
    next_kill = begin + kill_every if kill_every is not None else float("inf")
    revive_at = float("inf")
    # No kill so late that the victim could not come back in time to be counted.
    last_kill = begin + seconds - 3.0 * AWAY_S
    while (now := time.monotonic()) < begin + seconds:
        if now >= revive_at:
            swarm.revive()
            revive_at = float("inf")
        if next_kill <= now < last_kill and kill_every is not None:
            swarm.kill_one()
            next_kill, revive_at = now + kill_every, min(revive_at, now + AWAY_S)
        elif kill_every is None and any(not child.is_up for child in swarm.children):
            swarm.revive()
        live.restarts, live.errors = swarm.restarts, swarm.errors
        live.show(homes, swarm.statuses(), begin + seconds - now)
        time.sleep(max(0.0, min(LOOK_EVERY_S, begin + seconds - time.monotonic())))


def run_in_process(homes: Sequence[Home], seconds: float, live: Live) -> None:
    """Run all peers in this process."""
    asyncio.run(_run_nodes(homes, seconds, live))


async def _run_nodes(homes: Sequence[Home], seconds: float, live: Live) -> None:
    links = LinkOptions(dialling=asyncio.Semaphore(MOST_DIALS))
    nodes = [await open_node(home, OPTIONS, links=links) for home in homes]
    known = [read_ticket(nodes[0].ticket)]
    tasks = [asyncio.create_task(node.run(known if node is not nodes[0] else ())) for node in nodes]
    while not all(node.is_up or task.done() for node, task in zip(nodes, tasks, strict=True)):
        await asyncio.sleep(0.1)
    deadline = time.monotonic() + seconds
    with live:
        while (left := deadline - time.monotonic()) > 0 and not any(task.done() for task in tasks):
            live.show(homes, _statuses(nodes, tasks), left)
            # A look asks every link of every node.
            await asyncio.sleep(min(max(LOOK_EVERY_S, len(nodes) / 30), left))
    final = _statuses(nodes, tasks)
    for node in nodes:
        node.stop()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    for node in nodes:
        node.store.close()
    live.errors = sum(isinstance(end, BaseException) for end in ends)
    live.show(homes, final, 0.0)


def _statuses(nodes: list[Node], tasks: list[asyncio.Task[None]]) -> list[dict[str, Any]]:
    return [node.status() | {"running": not task.done()} for node, task in zip(nodes, tasks, strict=True)]
