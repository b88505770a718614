"""Screenshots of a real run. With DADA_PICTURES=docs/images they become those of the documentation."""

import os
from pathlib import Path

import numpy as np
import pytest

from dada.cli.demo_report import OURS, run_demo
from dada.dashboard.pages import LivePage
from dada.dashboard.recorder import Recorder
from dada.events import Progress, silent

VIEWS = {
    "page-light": dict(width=1280, height=800, theme="light", link="#colour=group", chooses=False),
    "page-dark": dict(width=1280, height=800, theme="dark", link="", chooses=True),
    "page-phone": dict(width=390, height=844, theme="light", link="", chooses=False),
}
# The user that gains most from collaboration.
BEST_SERVED = """(() => {
  const { history, frame } = dada;
  const gains = Array.from(frame.users.accuracy, (now, k) => now - history.alone[k]);
  return gains.indexOf(Math.max(...gains));
})()"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "run.dadalog"
    now_s = 0.0
    # By a clock that only the run moves, the recording is the same on a busy machine.
    with Recorder(path, now=lambda: now_s) as recorder:

        def observer(event):
            nonlocal now_s
            now_s += 0.002 * isinstance(event, Progress)
            recorder(event)

        run_demo(1, 100, "run", lambda method: observer if method == OURS else silent)
    with LivePage(path) as live:
        yield live.url


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    wanted = os.environ.get("DADA_PICTURES")
    return Path(__file__).parents[2] / wanted if wanted else tmp_path_factory.mktemp("pictures")


@pytest.mark.parametrize("name", VIEWS)
def test_a_picture_of_the_demo(name, url, folder, new_page):
    view = dict(VIEWS[name])
    link, chooses = view.pop("link"), view.pop("chooses")
    page = new_page(**view).open(url + link).until_settled()
    if chooses:
        page.click_user(page.value(BEST_SERVED))
    page.until("dada.scene.isAtRest")
    path = folder / f"{name}.png"
    page.tab.screenshot(path=path)
    assert page.problems == []
    pixels = page_pixels(path)
    assert pixels.shape[:2] == (view["height"], view["width"])
    # A dark page is dark, a light one light, and neither is empty.
    assert (pixels.mean() < 80) == (view["theme"] == "dark")
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 500


def page_pixels(path):
    import matplotlib.image

    return np.round(255 * matplotlib.image.imread(path)[:, :, :3]).astype(int)
