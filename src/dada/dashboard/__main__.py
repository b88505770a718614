"""The process that serves a page: settings are a line on standard input, and its end stops the server."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading


def _stop_with_input() -> None:
    # Unbuffered: a thread must not hold the lock of `sys.stdin` when the interpreter exits.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until the parent process closes standard input."""
    # A terminal sends Ctrl-C to all its processes; the parent process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The run has priority.
    if hasattr(os, "nice"):
        os.nice(10)
    settings = json.loads(sys.stdin.buffer.readline())

    from dada.dashboard.server import Address, serve

    def on_ready(url: str) -> None:
        print(json.dumps({"url": url}), flush=True)  # noqa: T201
        threading.Thread(target=_stop_with_input, daemon=True).start()

    try:
        serve(settings["path"], Address(settings["host"], settings["port"], settings["token"]), on_ready)
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
