import http.client
import threading
from urllib.parse import urlsplit

import pytest

from dada.dashboard.pages import LivePage
from dada.dashboard.records import Recorder
from dada.dashboard.server import Address
from tests.helpers.recordings import tell_moment, tell_run, write_recording
from tests.helpers.viewer import Viewer, get


@pytest.fixture
def recording(tmp_path):
    return write_recording(tmp_path / "run.dadalog")


def test_the_page_comes_with_everything_it_needs(recording):
    with LivePage(recording) as page:
        status, body, headers = get(page.url)
        assert status == 200
        assert b"app.js" in body
        assert "default-src 'self'" in headers["content-security-policy"]
        for name in ("app.js", "app.css", "LICENSES.txt"):
            assert get(page.url, f"/{name}")[0] == 200
        assert get(page.url, "/no-such-file")[0] == 404
        assert get(page.url, "/..%2f..%2fpyproject.toml")[0] == 404


def test_the_log_is_given_from_any_byte(recording):
    content = recording.read_bytes()
    with LivePage(recording) as page:
        for start in (0, 1, 100, len(content)):
            assert get(page.url, f"/log?from={start}")[1] == content[start:]
        for wrong in (len(content) + 1, -1, "x"):
            status, body, _ = get(page.url, f"/log?from={wrong}")
            assert status == 416
            assert f"0..{len(content)}" in body.decode()


def test_a_viewer_follows_a_run_and_catches_up_after_a_break(tmp_path):
    path = tmp_path / "run.dadalog"
    with Recorder(path) as recorder, LivePage(path) as page:
        viewer = Viewer(page.url)
        tell_run(recorder, moments=2, finished=False)
        viewer.catch_up(path.stat().st_size)
        for moment in range(2, 6):
            tell_moment(recorder, moment)
        viewer.catch_up(path.stat().st_size)
    assert viewer.log == path.read_bytes()


def test_fifty_viewers_and_some_who_never_read_do_not_stall_a_run(tmp_path):
    path = tmp_path / "run.dadalog"
    with Recorder(path) as recorder, LivePage(path) as page:
        stuck = [http.client.HTTPConnection(*urlsplit(page.url).netloc.split(":")) for _ in range(20)]
        for connection in stuck:
            connection.request("GET", "/events")
        gone = [http.client.HTTPConnection(*urlsplit(page.url).netloc.split(":")) for _ in range(20)]
        for connection in gone:
            connection.request("GET", "/log?from=0")
            connection.close()
        tell_run(recorder, moments=30)
        size = path.stat().st_size
        viewers = [Viewer(page.url) for _ in range(50)]
        threads = [threading.Thread(target=viewer.catch_up, args=(size,)) for viewer in viewers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for connection in stuck:
            connection.close()
    content = path.read_bytes()
    assert all(viewer.log == content for viewer in viewers)


def test_a_name_that_points_here_from_elsewhere_is_refused(recording):
    with LivePage(recording) as page:
        port = urlsplit(page.url).port
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
            assert get(page.url, headers={"Host": host})[0] == 200
        for host in ("evil.example", f"127.0.0.1.evil.example:{port}", ""):
            assert get(page.url, headers={"Host": host})[0] == 403


def test_beyond_loopback_nothing_is_given_without_the_token(recording):
    # 0.0.0.0 takes connections of this machine too, which are all that a test may make.
    with LivePage(recording, host="0.0.0.0") as page:
        local = f"http://127.0.0.1:{urlsplit(page.url).port}/"
        token = urlsplit(page.url).query
        assert token.startswith("token=")
        for path in ("/", "/log?from=0", "/events", "/app.js", "/?token=wrong", "/?token=%C3%A9", "/log?token="):
            assert get(local, path)[0] == 401
        status, _, headers = get(local, f"/?{token}")
        assert (status, headers["location"]) == (303, "/")
        cookie = headers["set-cookie"].split(";")[0]
        assert "HttpOnly" in headers["set-cookie"]
        assert get(local, "/log?from=0", {"Cookie": cookie})[1] == recording.read_bytes()


def test_only_what_needs_a_token_gets_one():
    assert Address("127.0.0.1").with_token().token is None
    first, second = Address("192.0.2.1").with_token(), Address("192.0.2.1").with_token()
    assert first.token != second.token
    assert first.url(80) == f"http://192.0.2.1:80/?token={first.token}"


def test_a_taken_port_says_so(recording):
    with LivePage(recording) as page:
        port = urlsplit(page.url).port
        with pytest.raises(OSError, match=f"cannot serve at 127.0.0.1 port {port} .*: choose another --port"):
            LivePage(recording, port=port)


def test_the_page_ends_with_whoever_started_it(recording):
    page = LivePage(recording)
    page.close()
    with pytest.raises(ConnectionRefusedError):
        get(page.url)
