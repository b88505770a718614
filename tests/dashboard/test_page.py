import json
from urllib.parse import urlsplit

import numpy as np
import pytest

from dada.dashboard.pages import LivePage, write_report
from dada.dashboard.records import Recorder
from dada.events import PeerStatus, SnapshotOffer
from tests.helpers.recordings import graph_at, tell_moment, tell_run, write_recording

LAST = {(k, l): w for k, l, w in graph_at(7, 20)}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return write_recording(tmp_path_factory.mktemp("run") / "run.dadalog")


@pytest.fixture(scope="module")
def url(recording):
    with LivePage(recording) as live:
        yield live.url


def assert_same_graph(shown, expected):
    assert shown.keys() == expected.keys()
    assert all(shown[edge] == pytest.approx(expected[edge], rel=2e-4) for edge in expected)


def test_the_page_loads_without_an_error_and_asks_nobody_else(url, new_page):
    page = new_page().open(url).until_drawn()
    assert_same_graph(page.edges(), LAST)
    assert page.tab.title() == "Two groups – dada"
    assert page.problems == []
    assert {urlsplit(request).hostname for request in page.requests if not request.startswith("blob:")} <= {
        "127.0.0.1",
        None,
    }


def test_without_a_graphics_card_the_page_draws_on_a_canvas(url, new_page):
    page = new_page().open(f"{url}?renderer=canvas").until_drawn()
    assert page.value("dada.scene.renderer.kind") == "canvas"
    # The browser warns of canvases that are read again and again, so a copy is read.
    painted = """(() => {
        const {width, height} = dada.scene.canvas;
        const copy = Object.assign(document.createElement('canvas'), {width, height});
        const context = copy.getContext('2d', {willReadFrequently: true});
        context.drawImage(dada.scene.canvas, 0, 0);
        return context.getImageData(0, 0, width, height).data.some((value) => value > 0);
    })()"""
    assert page.until(painted)
    assert page.problems == []


def test_nodes_and_edges_appear_and_change_while_the_run_runs(tmp_path, new_page):
    path = tmp_path / "run.dadalog"
    with Recorder(path) as recorder, LivePage(path) as live:
        page = new_page().open(live.url)
        page.until("window.dada && dada.connection === 'connected'")
        assert page.tab.locator("#message").is_visible()
        tell_run(recorder, moments=1, finished=False)
        page.until("dada.scene.drawn > 0")
        assert page.edges() == {}
        for moment in range(1, 4):
            tell_moment(recorder, moment)
            page.until(f"dada.edges.w.length === {5 * moment}")
            assert_same_graph(page.edges(), {(k, l): w for k, l, w in graph_at(moment, 20)})
        assert page.value("dada.history.userCount") == 20
        assert page.tab.locator("#status").inner_text().startswith("live")
        assert page.problems == []


def test_a_page_whose_server_went_away_goes_on_when_it_is_back(tmp_path, new_page):
    path = tmp_path / "run.dadalog"
    with Recorder(path) as recorder:
        tell_run(recorder, moments=2, finished=False)
        with LivePage(path) as live:
            page = new_page().open(live.url).until_drawn()
        page.until("dada.connection === 'lost'")
        assert "connection lost" in page.tab.locator("#status").inner_text()
        tell_moment(recorder, 2)
        with LivePage(path, port=urlsplit(live.url).port):
            page.until("dada.history.frames.length === 3")
            assert page.value("dada.connection") == "connected"


def test_a_click_shows_who_a_user_learns_from(url, new_page):
    page = new_page().open(url).until_drawn()
    page.click_user(4)
    panel = page.tab.locator("#panel-user")
    assert panel.locator("h2").inner_text() == "User user-4"
    expected = sorted(((w, a + b - 4) for (a, b), w in LAST.items() if 4 in (a, b)), reverse=True)
    rows = panel.locator(".neighbour").all_inner_texts()
    assert [row.split()[0] for row in rows] == [f"user-{user}" for _, user in expected]
    total = sum(w for w, _ in expected)
    assert rows[0].split()[-2] == f"{100 * expected[0][0] / total:.1f}"
    assert "alone" in panel.inner_text()
    assert "x0 <= 1" in panel.inner_text()
    panel.locator(".neighbour").first.click()
    assert panel.locator("h2").inner_text() == f"User user-{expected[0][1]}"
    page.tab.keyboard.press("Escape")
    assert page.value("dada.view.user") is None


def test_a_user_is_shown_under_the_pointer_and_found_by_name(url, new_page):
    page = new_page().open(url).until_drawn()
    page.tab.mouse.move(*page.place_of(7))
    assert page.tab.locator("#tooltip").inner_text().startswith("user-7 · ")
    page.tab.mouse.click(*page.place_of(7))
    assert page.tab.locator("#tooltip").is_hidden()
    page.tab.keyboard.press("/")
    page.tab.keyboard.type("user-11")
    assert page.value("dada.view.user") == 11


def test_the_slider_replays_the_run_from_the_start(url, new_page):
    page = new_page().open(url).until_drawn()
    for moment in (0, 3, 1, 7):
        page.tab.locator("#slider").fill(str(moment))
        assert_same_graph(page.edges(), {(k, l): w for k, l, w in graph_at(moment, 20)})
        assert f"{100 * moment} updates" in page.tab.locator("#moment").inner_text()
    assert page.value("dada.player.following") is False


def test_playing_runs_through_all_moments_and_ends_at_the_latest(url, new_page):
    page = new_page(motion="no-preference").open(url).until_drawn()
    assert page.value("dada.player.index") == 7, "a page opens at the latest moment"
    page.tab.keyboard.press("Space")
    seen = set()
    while page.value("!window.dada || dada.player.index < 0 || dada.player.playing"):
        seen.add(page.value("window.dada ? dada.player.index : -1"))
    assert len(seen - {-1, 7}) > 3
    assert page.value("dada.player.index") == 7
    page.tab.keyboard.press("Home")
    assert page.edges() == {}
    page.tab.keyboard.press("ArrowRight")
    assert len(page.edges()) == 5
    page.tab.keyboard.press("End")
    assert len(page.edges()) == 35


def test_weak_edges_can_be_hidden(url, new_page):
    page = new_page().open(url).until_drawn()
    page.tab.locator("#limit").fill("0.5")
    page.until("dada.scene.mixing === 1")
    drawn = page.value("dada.scene.edges.ink.filter((ink, i) => i % 2 === 1 && ink > 0).length")
    assert 0 < drawn < len(LAST)


def test_a_link_reproduces_the_view(url, new_page):
    page = new_page().open(url).until_drawn()
    page.click_user(4)
    page.tab.locator("#slider").fill("5")
    page.tab.locator("label:has(input[value=group])").click()
    page.tab.locator("label:has(input[value=bits])").evaluate("label => label.click()")
    page.tab.locator("#theme").click()
    page.tab.locator("#zoom-in").click()
    wanted = page.value("({...dada.view})")
    page.until("location.hash.includes('user=4') && location.hash.includes('camera=')")
    other = new_page().open(page.tab.url).until_drawn()
    view = other.value("({...dada.view})")
    assert view.pop("camera") == pytest.approx(wanted.pop("camera"), rel=1e-3)
    assert view == wanted
    assert (view["frame"], view["user"], view["colour"], view["x"], view["theme"]) == (5, 4, "group", "bits", "dark")
    assert other.tab.locator("#panel-user h2").inner_text() == "User user-4"


def test_peers_are_shown_with_their_state_restarts_round_trips_and_refusals(tmp_path, new_page):
    path = tmp_path / "peers.dadalog"
    with Recorder(path) as recorder, LivePage(path) as live:
        tell_run(recorder, moments=2, n_users=3, finished=False)
        page = new_page().open(live.url).until_drawn()
        tab = page.tab.locator("[data-tab=peers]")
        assert tab.is_hidden()
        recorder(
            PeerStatus(np.array([1, 0, 1]), np.array([0, 2, 0]), np.array([3.5, np.nan, 12.0]), np.array([0, 0, 7]))
        )
        tell_moment(recorder, 2, n_users=3)
        page.until("dada.player.count === 3")
        tab.click()
        rows = [row.split("\t") for row in page.tab.locator(".peers tbody tr").all_inner_texts()]
        assert rows == [
            ["user-1", "○ down", "2", "–", "0"],
            ["user-0", "● up", "0", "3.5 ms", "0"],
            ["user-2", "● up", "0", "12 ms", "7"],
        ]
        assert "2 of 3" in page.tab.locator("#panel-peers .tiles").inner_text()
        assert "down or unknown" in page.tab.locator("#legend").inner_text()
        page.tab.locator(".peers .link").first.click()
        assert page.tab.locator("#panel-user h2").inner_text() == "User user-1"
        assert page.problems == []


def test_users_may_join_while_a_run_is_watched(tmp_path, new_page):
    path = tmp_path / "joining.dadalog"
    with Recorder(path) as recorder, LivePage(path) as live:
        tell_run(recorder, moments=3, n_users=6, finished=False)
        page = new_page().open(live.url).until_drawn()
        tell_run(recorder, moments=4, n_users=9, finished=False)
        page.until("dada.player.count === 7")
        assert_same_graph(page.edges(), {(k, l): w for k, l, w in graph_at(3, 9)})
        page.until("dada.scene.places.length === 2 * 9")
        assert page.value("dada.scene.nodes.radius.length") == 9
        page.tab.locator("#slider").fill("2")
        assert "6 users" in page.tab.locator("#legend").inner_text()
        assert page.problems == []


def test_charts_of_what_is_never_known_are_left_out(tmp_path, new_page):
    path = tmp_path / "run.dadalog"
    with Recorder(path) as recorder, LivePage(path) as live:
        for moment in range(3):
            tell_moment(lambda event: recorder(event) if isinstance(event, SnapshotOffer) else None, moment)
        page = new_page().open(live.url).until_drawn()
        titles = page.tab.locator("figure:visible .chart-title")
        page.until("document.querySelectorAll('figure[hidden]').length === 2")
        assert titles.all_inner_texts() == ["Accuracy", "Neighbours per user", "Messages per second"]


def test_users_can_be_dragged_and_the_view_moved(url, new_page):
    page = new_page().open(url).until_drawn()
    x, y = page.place_of(3)
    page.tab.mouse.move(x, y)
    page.tab.mouse.down()
    page.tab.mouse.move(x + 80, y + 60, steps=4)
    assert page.place_of(3) == pytest.approx((x + 80, y + 60), abs=1)
    page.tab.mouse.up()
    box = page.tab.locator("#stage").bounding_box()
    before = page.value("[dada.scene.camera.x, dada.scene.camera.y]")
    page.tab.mouse.move(box["x"] + 15, box["y"] + 300)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + 75, box["y"] + 300, steps=3)
    page.tab.mouse.up()
    after = page.value("[dada.scene.camera.x, dada.scene.camera.y]")
    assert after[0] < before[0]
    assert after[1] == before[1]


def test_what_is_shown_can_be_downloaded(url, new_page):
    page = new_page().open(url).until_drawn()
    content = {}
    for kind in ("png", "svg", "json"):
        if not page.tab.locator(f"[data-save={kind}]").is_visible():
            page.tab.locator("#download summary").click()
        with page.tab.expect_download() as waiting:
            page.tab.locator(f"[data-save={kind}]").click()
        assert waiting.value.suggested_filename == f"two-groups.{kind}"
        with open(waiting.value.path(), "rb") as file:
            content[kind] = file.read()
    assert content["png"].startswith(b"\x89PNG")
    assert content["svg"].startswith(b"<svg")
    assert content["svg"].count(b"<circle") == 20
    assert content["svg"].count(b"<path") == len(LAST)
    assert b">user-4</text>" in content["svg"]
    data = json.loads(content["json"])
    assert_same_graph({(edge["source"], edge["target"]): edge["weight"] for edge in data["edges"]}, LAST)
    assert data["users"][4]["name"] == "user-4"


def test_at_phone_width_nothing_sticks_out(url, new_page):
    page = new_page(390, 844, has_touch=True, is_mobile=True).open(url).until_drawn()
    assert page.value("document.documentElement.scrollWidth") <= 390
    page.tab.touchscreen.tap(*page.place_of(4))
    assert page.tab.locator("#panel-user h2").inner_text() == "User user-4"


def test_a_report_opens_from_disk_and_shows_the_same_graph(recording, tmp_path, new_page):
    write_report(recording, tmp_path / "report.html")
    page = new_page().open((tmp_path / "report.html").as_uri()).until_drawn()
    assert_same_graph(page.edges(), LAST)
    assert page.tab.locator("#status").inner_text() == "All planned updates were made."
    page.click_user(4)
    assert page.tab.locator("#panel-user h2").inner_text() == "User user-4"
    page.tab.locator("#slider").fill("2")
    assert len(page.edges()) == 10
    assert page.problems == []
    assert {urlsplit(request).scheme for request in page.requests} <= {"file", "blob", "data"}


def test_a_truncated_recording_is_shown_up_to_its_last_good_record(recording, tmp_path, new_page):
    cut = tmp_path / "cut.dadalog"
    cut.write_bytes(recording.read_bytes()[:-200])
    with LivePage(cut) as live:
        page = new_page().open(live.url).until_drawn()
        assert 0 < page.value("dada.history.frames.length") <= 8
        assert page.problems == []
