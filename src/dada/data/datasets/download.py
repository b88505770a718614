"""Download a file over HTTP; a broken transfer goes on where it stopped.

Pooch checks the digest and moves the finished file into place. What it lacks is to resume, so the transfer itself
is done here: bytes go to a file ending in ``.part``, and every new attempt asks the server for the missing rest.
"""

from __future__ import annotations

import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dada.data.datasets.catalog import SourceFile

__all__ = ["DownloadError", "Progress", "Resuming", "download", "silent"]

# Called with the file's name, the bytes so far and, if the server says, the bytes in all.
Progress = Callable[[str, int, int | None], None]

ATTEMPTS = 4
CHUNK_BYTES = 1 << 16


class DownloadError(OSError):
    """A file could not be downloaded."""


# Not every OSError: a full disk is no reason to try again.
NETWORK_FAULTS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
    DownloadError,
)


def silent(filename: str, done: int, total: int | None) -> None:
    """Report nothing."""


def download(source: SourceFile, folder: Path, progress: Progress = silent, pause_s: float = 1.0) -> Path:
    """Bring a file into a folder, where it appears complete and checked or not at all.

    Parameters
    ----------
    source : SourceFile
        Name, address and digest.
    folder : Path
        Where the file goes. A ``.part`` file an interrupted download left there is continued.
    progress : callable
        Told how far the download is.
    pause_s : float
        Wait before a second attempt, twice as long before the third, and so on.

    Returns
    -------
    Path

    Raises
    ------
    DownloadError
        If the server cannot be reached, refuses, or never sends the whole file.
    ValueError
        If the file is not the expected one.
    """
    import pooch

    part = folder / f"{source.filename}.part"
    continued = part.exists()
    known = None if source.sha256 is None else f"sha256:{source.sha256}"
    try:
        with _quiet(pooch.get_logger()):
            resuming = Resuming(part, progress, pause_s)
            return Path(pooch.retrieve(source.url, known, source.filename, folder, downloader=resuming))
    except ValueError as error:
        # The part may have come from a file that has changed at the server since.
        if continued:
            return download(source, folder, progress, pause_s)
        raise ValueError(f"{source.url}: {error}") from error


class Resuming:
    """A downloader for pooch that keeps what it has in a file of its own until all of it is there."""

    def __init__(self, part: Path, progress: Progress = silent, pause_s: float = 1.0, timeout_s: float = 30.0) -> None:
        self.part = part
        self.progress = progress
        self.pause_s = pause_s
        self.timeout_s = timeout_s

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        """Bring the whole content of `url` to `output_file`."""
        most, fruitless = self._have(), 0
        while True:
            try:
                self._transfer(url)
                break
            except NETWORK_FAULTS as error:
                fruitless = 1 if self._have() > most else fruitless + 1
                most = max(most, self._have())
                if fruitless >= ATTEMPTS or _is_final(error):
                    self.part.unlink(missing_ok=True)
                    raise DownloadError(
                        f"{url}: {_reason(error)}. Nothing was kept. Try again later, "
                        "or download the file by other means and give it with --file"
                    ) from error
            time.sleep(self.pause_s * fruitless)
        os.replace(self.part, output_file)

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _transfer(self, url: str) -> None:
        """Ask once for what is missing, and fail if it does not come to its end."""
        have = self._have()
        # A compressed transfer could not be continued in the middle.
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "dada"})
        if have:
            request.add_header("Range", f"bytes={have}-")
        try:
            reply = urllib.request.urlopen(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                self.part.unlink(missing_ok=True)
            raise
        with reply:
            continues = reply.status == http.client.PARTIAL_CONTENT
            if continues and not reply.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                self.part.unlink(missing_ok=True)
                raise DownloadError("the server sent another part of the file than it was asked for")
            done = have if continues else 0
            total = None if reply.length is None else done + reply.length
            with self.part.open("ab" if continues else "wb") as out:
                while chunk := reply.read(CHUNK_BYTES):
                    out.write(chunk)
                    done += len(chunk)
                    self.progress(self.part.stem, done, total)
        if total is not None and done < total:
            raise DownloadError(f"the download was cut off after {done} of {total} bytes")


def _is_final(error: Exception) -> bool:
    """Tell whether the server refused for good: the address or the right to it is wrong."""
    passing = (
        http.client.REQUEST_TIMEOUT,
        http.client.REQUESTED_RANGE_NOT_SATISFIABLE,
        http.client.TOO_MANY_REQUESTS,
    )
    return isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500 and error.code not in passing


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"the server could not be reached ({error.reason})"
    return str(error) or type(error).__name__


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """Keep pooch from printing addresses and digests while a progress bar is on the screen."""
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)
