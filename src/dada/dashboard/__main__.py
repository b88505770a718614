"""The page in a process of its own: settings come as a line on standard input, and its end is the signal to stop."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading


def _stop_with_input() -> None:
    # Past the buffer of `sys.stdin`, whose lock a thread must not hold when the interpreter ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until the process that started this one goes away."""
    # A terminal sends Ctrl-C to all its processes; the one that started this decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Where there are too few processors, the run goes first.
    if hasattr(os, "nice"):
        os.nice(10)
    settings = json.loads(sys.stdin.buffer.readline())

    from dada.dashboard.server import Address, serve

    def tell(url: str) -> None:
        print(json.dumps({"url": url}), flush=True)  # noqa: T201
        threading.Thread(target=_stop_with_input, daemon=True).start()

    try:
        serve(settings["path"], Address(settings["host"], settings["port"], settings["token"]), tell)
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
