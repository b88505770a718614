"""A viewer of the page without a browser."""

import http.client
import json
import tempfile
from contextlib import contextmanager
from urllib.parse import urlsplit

from dada.dashboard import records
from dada.dashboard.records import LogReader, header


@contextmanager
def connected(url, timeout_s=20):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    try:
        yield connection
    finally:
        connection.close()


def get(url, path="/", headers=None):
    with connected(url) as connection:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())


class Viewer:
    """A viewer without a browser: receives sizes and fetches missing bytes, as the page does."""

    def __init__(self, url):
        self.url, self.log = url, b""

    def catch_up(self, wanted):
        """Follow the recording until it is as long as wanted."""
        self._follow(lambda: len(self.log) >= wanted)

    def until(self, kind, holds=lambda record: True):
        """Follow the recording until it has a record of a kind for which something holds; returns the latest."""
        found = []

        def is_found():
            found[:] = [record for record in self.records() if isinstance(record, kind) and holds(record)]
            return bool(found)

        self._follow(is_found)
        return found[-1]

    def records(self):
        """What has come so far."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(self.log or header())
            file.flush()
            return [records.decode(content) for content in LogReader(file.name)]

    def _follow(self, is_enough):
        if is_enough():
            return
        with connected(self.url) as connection:
            connection.request("GET", "/events")
            stream = connection.getresponse()
            while not is_enough():
                line = stream.fp.readline()
                if line.startswith(b"data: "):
                    size = json.loads(line[6:])["size"]
                    while len(self.log) < size:
                        self.log += get(self.url, f"/log?from={len(self.log)}")[1]
