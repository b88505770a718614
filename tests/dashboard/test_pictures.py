"""Screenshots of a real run. With DADA_PICTURES=docs/images they become those of the documentation."""

import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dada import DadaClassifier, Linear, Population
from dada.cli.demo_report import OURS, run_demo, write_report
from dada.dashboard.pages import LivePage
from dada.dashboard.records import Recorder
from dada.events import Progress, silent

VIEWS = {
    "page-light": dict(width=1280, height=800, theme="light", link="#colour=group", chooses=False),
    "page-dark": dict(width=1280, height=800, theme="dark", link="", chooses=True),
    "page-phone": dict(width=390, height=844, theme="light", link="", chooses=False),
}
REPORTS = {
    "report-light": dict(width=1100, height=900, theme="light"),
    "report-dark": dict(width=1100, height=900, theme="dark"),
    "report-phone": dict(width=390, height=844, theme="light"),
}
# The other pictures, and runs large enough to be worth a picture, are for the documentation only.
DRAWS_ALL = bool(os.environ.get("DADA_PICTURES"))
# The user that gains most from collaboration.
BEST_SERVED = """(() => {
  const { history, frame } = dada;
  const gains = Array.from(frame.users.accuracy, (now, k) => now - history.alone[k]);
  return gains.indexOf(Math.max(...gains));
})()"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder of a demo: its recording and its report."""
    made = tmp_path_factory.mktemp("demo")
    with recorded(made / "run.dadalog") as observer:
        result = run_demo(1, 100 if DRAWS_ALL else 12, "run", lambda method: observer if method == OURS else silent)
    write_report(result, made)
    return made


@pytest.fixture(scope="module")
def url(demo):
    with LivePage(demo / "run.dadalog") as live:
        yield live.url


@contextmanager
def recorded(path):
    """An observer that records; by a clock that only the run moves, so a busy machine gives the same recording."""
    now_s = 0.0
    with Recorder(path, now=lambda: now_s) as recorder:

        def observer(event):
            nonlocal now_s
            now_s += 0.002 * isinstance(event, Progress)
            recorder(event)

        yield observer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    wanted = os.environ.get("DADA_PICTURES")
    return Path(__file__).parents[2] / wanted if wanted else tmp_path_factory.mktemp("pictures")


@pytest.mark.parametrize("name", VIEWS if DRAWS_ALL else ["page-phone"])
def test_a_picture_of_the_demo(name, url, folder, new_page):
    view = dict(VIEWS[name])
    link, chooses = view.pop("link"), view.pop("chooses")
    page = new_page(**view).open(url + link).until_settled()
    if chooses:
        page.click_user(page.value(BEST_SERVED))
    page.until("dada.scene.isAtRest")
    assert_pictured(page, folder / f"{name}.png", **view)


@pytest.mark.parametrize("name", REPORTS if DRAWS_ALL else ["report-phone"])
def test_a_picture_of_the_report(name, demo, folder, new_page):
    page = new_page(**REPORTS[name])
    page.tab.goto((demo / "report.html").as_uri())
    sideways = page.value("document.documentElement.scrollWidth > innerWidth")
    assert not sideways, "tables and pictures scroll by themselves"
    assert page.tab.locator(".hint").first.is_visible() == (REPORTS[name]["width"] < 700)
    assert_pictured(page, folder / f"{name}.png", **REPORTS[name])


def test_a_picture_of_a_fit_with_several_classes(tmp_path, folder, new_page):
    rng = np.random.default_rng(0)
    X, owners = rng.normal(size=(600, 4)), np.repeat(np.arange(30), 20)
    turn = np.where(owners % 2, 1.0, -1.0)
    kinds = np.array(["tea", "coffee", "water"])[np.digitize(turn * X[:, 0] + 0.5 * X[:, 1], [-0.5, 0.5])]
    people = Population.from_arrays(X, kinds, [f"p{k}" for k in owners])
    with recorded(tmp_path / "run.dadalog") as observer:
        settings = {} if DRAWS_ALL else {"predictors": Linear(), "graph": "evidence", "n_updates": 20}
        DadaClassifier(**settings, random_state=0).fit_population(people, observer=observer)
    view = dict(width=1280, height=800, theme="light")
    with LivePage(tmp_path / "run.dadalog") as live:
        page = new_page(**view).open(live.url)
        if DRAWS_ALL:
            page.until_settled().until("dada.scene.isAtRest")
        else:
            page.until_drawn()
        assert page.tab.locator("#tiles").inner_text().startswith("mean loss")
        assert not page.tab.locator("#accuracy-choice").is_visible()
        assert_pictured(page, folder / "page-classes.png", **view)


def assert_pictured(page, path, width, height, theme):
    """Take a picture: a dark page is dark, a light one light, and neither is empty."""
    page.tab.screenshot(path=path)
    assert page.problems == []
    pixels = page_pixels(path)
    assert pixels.shape[:2] == (height, width)
    assert (pixels.mean() < 80) == (theme == "dark")
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 200


def page_pixels(path):
    import matplotlib.image

    return np.round(255 * matplotlib.image.imread(path)[:, :, :3]).astype(int)
