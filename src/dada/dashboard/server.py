"""Serve the page of a recording, finished or still growing.

`/events` sends the length of the recording, and a viewer fetches the missing bytes from `/log` at its own pace. The
server keeps no state per viewer and the run only writes a file, so that slow, many or dropped viewers cost the run
nothing, and a viewer that reconnects continues where it stopped.

As a program it serves a live page: its settings are a line on standard input, whose end stops it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dada.dashboard.pages import read_asset

#: Shortest time between two events for a viewer; with more than `FEW_VIEWERS` it grows with their number.
POLL_S = 0.1
FEW_VIEWERS = 2
ALIVE_EVERY_S = 15.0
LARGEST_ANSWER = 4 << 20
PIECE = 1 << 16
COOKIE = "dada_token"
ASSETS = {"app.js": "text/javascript", "app.css": "text/css", "LICENSES.txt": "text/plain"}
SECURITY = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; worker-src blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def make_app(path: Path, token: str | None = None) -> ASGIApp:
    """The application that serves the recording at `path`; with a token, only to viewers that have it."""

    async def page(request: Request) -> Response:
        return Response(read_asset("index.html"), media_type="text/html")

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return PlainTextResponse("not found", 404)
        return Response(read_asset(name), media_type=ASSETS[name], headers={"cache-control": "no-cache"})

    async def log(request: Request) -> Response:
        start, size = request.query_params.get("from", "0"), path.stat().st_size
        if not (start.isdecimal() and int(start) <= size):
            return PlainTextResponse(f"from must be in 0..{size} (bytes of the recording), got {start!r}", 416)
        length = min(size - int(start), LARGEST_ANSWER)
        headers = {"content-length": str(length), "cache-control": "no-store"}
        return StreamingResponse(_pieces(path, int(start), length), 200, headers, "application/octet-stream")

    viewers = Viewers()

    async def events(request: Request) -> Response:
        return StreamingResponse(_sizes(path, viewers), 200, {"cache-control": "no-store"}, "text/event-stream")

    routes = [Route("/", page), Route("/log", log), Route("/events", events), Route("/{name}", asset)]
    return Guard(Starlette(routes=routes), token)


async def _pieces(path: Path, start: int, length: int) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while length > 0 and (piece := file.read(min(PIECE, length))):
            length -= len(piece)
            yield piece


@dataclass
class Viewers:
    """Number of viewers of a page, which share a bounded rate of events.

    >>> Viewers(2).interval_s, Viewers(50).interval_s
    (0.1, 2.5)
    """

    n: int = 0

    @property
    def interval_s(self) -> float:
        """Time between two events for each viewer."""
        return POLL_S * max(1.0, self.n / FEW_VIEWERS)


async def _sizes(path: Path, viewers: Viewers) -> AsyncIterator[str]:
    """Events with the length of the recording whenever it has changed."""
    viewers.n += 1
    try:
        sent, quiet_s = None, 0.0
        yield "retry: 1000\n\n"
        while True:
            stat = path.stat()
            state = (stat.st_ino, stat.st_size)
            if state != sent:
                sent, quiet_s = state, 0.0
                yield f"data: {json.dumps({'run': str(state[0]), 'size': state[1]})}\n\n"
            elif quiet_s >= ALIVE_EVERY_S:
                quiet_s = 0.0
                yield ": still here\n\n"
            wait_s = viewers.interval_s
            await asyncio.sleep(wait_s)
            quiet_s += wait_s
    finally:
        viewers.n -= 1


class Guard:
    """Checks access, and adds headers that keep the browser from connecting to other hosts.

    Without a token the page is for this machine only: a request must name a loopback host, against DNS rebinding.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self.app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        if self.token is None:
            host = _host_of(request.headers)
            return None if is_loopback(host) else PlainTextResponse(f"unknown host {host!r}", 403)
        given = request.query_params.get("token")
        if given is not None and _is_same(given, self.token):
            rest = urlencode([pair for pair in parse_qsl(request.url.query) if pair[0] != "token"])
            answer = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        if _is_same(request.cookies.get(COOKIE, ""), self.token):
            return None
        return PlainTextResponse("This page needs its token: open the link that dada printed.", 401)


def _is_same(given: str, token: str) -> bool:
    """Whether a token is the right one, in constant time; strings may hold any character."""
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode("utf-8", "surrogatepass"))


def _host_of(headers: Headers) -> str:
    host = headers.get("host", "")
    return host.split("]")[0] + "]" if host.startswith("[") else host.rsplit(":", 1)[0]


@dataclass(frozen=True)
class Address:
    """Address of a page: port 0 is any free one, and beyond loopback viewers need a token."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None

    def with_token(self) -> Address:
        """The address with a token, if it needs one."""
        if self.token is not None or is_loopback(self.host):
            return self
        return Address(self.host, self.port, secrets.token_urlsafe(16))

    def url(self, port: int) -> str:
        """The link to the page; a host that means all addresses is replaced by this machine's name."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else host
        return f"http://{host}:{port}/" + (f"?token={self.token}" if self.token else "")


def serve(path: str | os.PathLike[str], address: Address, on_ready: Callable[[str], Any]) -> None:
    """Serve the page of a recording until interrupted; `on_ready` is called with its link."""
    address = address.with_token()
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address.host, address.port))
        # From here on viewers can connect; they wait until the server is ready.
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno, f"cannot serve at {address.host} port {address.port} ({error.strerror}): choose another --port"
        ) from error
    app = make_app(Path(path), address.token)
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1, access_log=False)
    on_ready(address.url(listener.getsockname()[1]))
    uvicorn.Server(config).run(sockets=[listener])


def _stop_with_input() -> None:
    # Unbuffered: a thread must not hold the lock of `sys.stdin` when the interpreter exits.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until the parent process closes standard input."""
    # The run has priority.
    if hasattr(os, "nice"):
        os.nice(10)
    settings = json.loads(sys.stdin.buffer.readline())

    def on_ready(url: str) -> None:
        print(json.dumps({"url": url}), flush=True)  # noqa: T201
        threading.Thread(target=_stop_with_input, daemon=True).start()

    try:
        serve(settings["path"], Address(settings["host"], settings["port"], settings["token"]), on_ready)
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
