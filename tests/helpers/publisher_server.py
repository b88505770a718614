"""A publisher's web server on the loopback address that behaves as a test tells it, request by request."""

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files` by name. Each entry of `script` spoils one request; after the last, all go well.

    An entry is a dict: `status` answers with this status, `cut` sends so many bytes and hangs up, `ignore_range`
    sends the whole file whatever was asked for, `shift` answers with a part that starts so much later.
    """

    daemon_threads = True

    def __init__(self, files, script=()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.script = list(script)
        self.requests = []

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        name, asked = self.path.lstrip("/"), self.headers.get("Range")
        self.server.requests.append((name, asked))
        turn = self.server.script.pop(0) if self.server.script else {}
        if "status" in turn or name not in self.server.files:
            self.send_error(turn.get("status", 404))
            return
        content = self.server.files[name]
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and "ignore_range" not in turn else 0
        if start >= len(content):
            self.send_error(416)
            return
        start += turn.get("shift", 0)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: turn.get("cut")])

    def log_message(self, *args):
        pass


@contextmanager
def serving(files, script=()):
    with Server(files, script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
