import os
import shutil
import time

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Graphics by the processor: the same picture on every machine.
FLAGS = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-gpu-vsync", "--hide-scrollbars"]
PATIENCE_S = 60


# For each module its own: as long as Playwright is there, an event loop runs, in which others could not start theirs.
@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: install one of {', '.join(BROWSERS)}")
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=FLAGS, chromium_sandbox=os.geteuid() != 0, timeout=PATIENCE_S * 1000
        )
        yield browser
        browser.close()


class Page:
    """A page in a browser that remembers what went wrong, and where it sent requests."""

    def __init__(self, context):
        self.tab = context.new_page()
        self.problems, self.requests = [], []
        self.tab.on("console", lambda message: self._note(message.type, message.text))
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def _note(self, kind, text):
        if kind in ("error", "warning"):
            self.problems.append(text)

    def open(self, url):
        self.tab.goto(url)
        return self

    def value(self, script):
        return self.tab.evaluate(script)

    def until(self, script, what="the page"):
        """Wait until a script gives something true; the page's own rules forbid Playwright's way of waiting."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.tab.evaluate(script)):
            assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}: {script}; problems: {self.problems}"
            self.tab.wait_for_timeout(20)
        return value

    def until_drawn(self):
        """Wait for the graph, and keep it still from then on."""
        self.until("window.dada && dada.scene.drawn > 0")
        self.value("dada.scene.layout.hold(true)")
        return self

    def until_settled(self):
        """Wait until the layout has come to rest."""
        self.until("window.dada && dada.scene.layout.settled && dada.scene.mixing === 1")
        return self

    def edges(self):
        """The shown graph as {(k, l): weight}."""
        k, l, w = self.value("[dada.edges.k, dada.edges.l, dada.edges.w].map((values) => Array.from(values))")
        return {(a, b): weight for a, b, weight in zip(k, l, w, strict=True)}

    def click_user(self, k):
        self.tab.mouse.click(*self.place_of(k))

    def place_of(self, k):
        """Where a user is on the screen, once the camera stands still."""
        self.until("!dada.scene.loop.isBusy")
        box = self.tab.locator("#stage").bounding_box()
        x, y = self.value(f"dada.scene.screenPlace({k})")
        return box["x"] + x, box["y"] + y


@pytest.fixture
def new_page(browser):
    contexts = []

    def make(width=1280, height=800, theme="light", motion="reduce", **options):
        size = {"width": width, "height": height}
        contexts.append(browser.new_context(viewport=size, color_scheme=theme, reduced_motion=motion, **options))
        return Page(contexts[-1])

    yield make
    for context in contexts:
        context.close()
