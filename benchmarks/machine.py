"""The machine of a benchmark; processor time, which hardly depends on its load; and the best of several trials."""

import json
import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path


def machine_facts():
    """Processor, memory, load and versions of the machine of a benchmark."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
    }


def _processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _memory_gb():
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return None


def processor_seconds():
    """Processor time of this process and all its descendants, those of Ray included."""
    times, parents = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            parents[int(status.parent.name)] = int(fields[1])
            times[int(status.parent.name)] = sum(map(int, fields[11:15]))
    found, new = {os.getpid()}, {os.getpid()}
    while new:
        new = {child for child, parent in parents.items() if parent in found} - found
        found |= new
    return sum(times[pid] for pid in found) / os.sysconf("SC_CLK_TCK")


def write_best(trials, path):
    """Write the most accurate trial, with the time of the fastest."""
    best = max(trials, key=lambda trial: trial["accuracy"]) | {"seconds": min(trial["seconds"] for trial in trials)}
    Path(path).write_text(json.dumps(best))
