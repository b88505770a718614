"""A publisher's web server on the loopback address, with scripted failures."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files` by name. Each entry of `script` changes one response; the responses after the last are correct.

    An entry is a dict: `status` answers with this status, `cut` closes the connection after this number of bytes.
    """

    daemon_threads = True

    def __init__(self, files, script=()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.script = list(script)
        self.requests = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.requests.append(name)
        turn = self.server.script.pop(0) if self.server.script else {}
        if "status" in turn or name not in self.server.files:
            self.send_error(turn.get("status", 404))
            return
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: turn.get("cut")])

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
