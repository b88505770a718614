"""The file of a recording: a header, then records, each with its length and checksum.

    header   8 bytes "DADALOG" and a line feed, uint32 version
    record   uint32 length of the body, uint32 CRC-32 of the body, body
    body     one byte, 0 or 1, then the content: as it is, or compressed with zlib

Numbers are little-endian. `records` defines the content. A file may end within a record, because its writer was killed
or is still writing: everything before is valid.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAGIC = b"DADALOG\n"
VERSION = 1
HEADER = struct.Struct("<8sI")
FRAME = struct.Struct("<II")
#: Smaller contents are not compressed.
COMPRESS_FROM = 200
#: A larger length is damage: no record has it. A record of a million users takes about 1e8 bytes.
LARGEST_BODY = 1 << 28
LARGEST_CONTENT = 1 << 29


class RecordingError(ValueError):
    """A file is not a recording that this version can read."""


def header() -> bytes:
    """The first bytes of a recording."""
    return HEADER.pack(MAGIC, VERSION)


def frame(content: bytes) -> bytes:
    """A record around the given content.

    >>> frame(b"abc").hex(" ", 4)
    '04000000 cc4721eb 00616263'
    """
    body = b"\0" + content if len(content) < COMPRESS_FROM else b"\1" + zlib.compress(content, level=1)
    return FRAME.pack(len(body), zlib.crc32(body)) + body


def check_header(start: bytes, name: str) -> None:
    """Raise if the file is not a recording, or one of a newer version."""
    if len(start) < HEADER.size or start[: len(MAGIC)] != MAGIC:
        raise RecordingError(f"{name} is not a recording of dada: it does not start with {MAGIC!r} and a version")
    version = HEADER.unpack(start[: HEADER.size])[1]
    if version > VERSION:
        raise RecordingError(
            f"{name} is a recording of version {version}, and this dada reads versions up to {VERSION}: update dada"
        )


class LogReader:
    """Reads the records of a file from its start, up to the last good one.

    Attributes
    ----------
    good_bytes : int
        Size of header and good records read so far.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "run.dadalog"
    ...     _ = path.write_bytes(header() + frame(b"one") + frame(b"two")[:-1])
    ...     reader = LogReader(path)
    ...     list(reader), reader.good_bytes, reader.lost_bytes
    ([b'one'], 24, 11)
    """

    def __init__(self, path: str | os.PathLike[str], largest_content: int = LARGEST_CONTENT) -> None:
        self.path, self.largest_content = Path(path), largest_content
        self.size = self.path.stat().st_size
        with self.path.open("rb") as file:
            check_header(file.read(HEADER.size), str(path))
        self.good_bytes = HEADER.size

    @property
    def lost_bytes(self) -> int:
        """Bytes after the last good record: 0 for a complete file that was read to its end."""
        return self.size - self.good_bytes

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.good_bytes)
            while (body := _next_body(file)) is not None:
                content = _content(body, self.largest_content)
                if content is None:
                    return
                self.good_bytes += FRAME.size + len(body)
                yield content


def _next_body(file: BinaryIO) -> bytes | None:
    """The body of the next record; None at the end of the file or if the record is damaged."""
    start = file.read(FRAME.size)
    if len(start) < FRAME.size:
        return None
    length, checksum = FRAME.unpack(start)
    if not 1 <= length <= LARGEST_BODY:
        return None
    body = file.read(length)
    return body if len(body) == length and zlib.crc32(body) == checksum else None


def _content(body: bytes, most: int) -> bytes | None:
    if body[0] == 0:
        return body[1:]
    if body[0] != 1:
        return None
    # A few bytes can stand for gigabytes: never more than a record may hold is decompressed.
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(body[1:], most)
    except zlib.error:
        return None
    return content if stream.eof else None
