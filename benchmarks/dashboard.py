"""What the dashboard costs a run, and how fast its page is with many users.

    python benchmarks/dashboard.py [--users 5000] [--edges 50000] [--repeats 5] [--viewers 50] [--json]

The cost: the same run of the engine unwatched, recorded with the page open in a browser, and with many more viewers,
who follow from a process of low priority because they represent other machines. "own" is processor time of the run's
process, "wall" is wall time, which on a machine with few cores includes the browser's work. The fastest of the repeats
counts: the page is active in all of them, other tasks of the machine are not.

The page: time from the request to the first picture of the graph, and frames per second while the view, and then a
user, is dragged. The browser is headless and draws with the processor; a graphics card is faster.

The demo: time from `dada demo --live` to a page that is open, and to a graph on it that has changed.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from dada import task
from dada.core.graph_steps import LogDegree
from dada.dashboard.pages import LivePage
from dada.dashboard.records import Recorder
from dada.data import Stumps, moons
from dada.engine import Plan, run
from dada.events import RunInfo, Snapshot, SnapshotOffer, Stopped

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRAG_S = 4.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, default=5000)
    parser.add_argument("--edges", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--follow", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        follow_many(options.follow, options.viewers)
        return
    with browser_page() as page:
        result = {"page": speed_of_page(page, options.users, options.edges)}
    with browser_page() as page:
        result["demo"] = speed_of_demo(page)
    with browser_page() as page:
        result["cost"] = cost_of_watching(page, options.repeats, options.viewers)
    print(json.dumps(result, indent=2) if options.json else as_text(result, options))


def as_text(result, options):
    page, demo, cost = result["page"], result["demo"], result["cost"]
    return "\n".join(
        [
            f"{options.users} users, {options.edges} edges; {page['renderer']}; load {page['load']:.1f}",
            f"  first picture         {page['first_picture_s']:.2f} s    (limit 3 s)",
            f"  dragging the view     {page['view_fps']:.0f} frames/s with {page['view_edges']} edges  (limit 20)",
            f"  dragging a user       {page['user_fps']:.0f} frames/s with {page['user_edges']} edges  (limit 20)",
            "dada demo --live",
            f"  page open after       {demo['page_open_s']:.1f} s    (limit 5 s)",
            f"  graph moves after     {demo['graph_moves_s']:.1f} s",
            f"a run of {cost['plain_s']:.1f} s, slower by the clock (its own processor time); load {cost['load']:.1f}",
            f"  with the page open    {slower(cost, 'page')}  (limit 10)",
            f"  and {options.viewers} viewers more   {slower(cost, 'crowd')}",
        ]
    )


def slower(cost, name):
    wall, own, median = (cost[f"{name}_{part}"] for part in ("wall", "own", "median"))
    return f"{wall:+.1f} %  ({own:+.1f} %); by medians {median:+.1f} %"


@contextmanager
def browser_page(width=1440, height=900):
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        sys.exit(f"no browser: install one of {', '.join(BROWSERS)}")
    flags = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags, chromium_sandbox=os.geteuid() != 0)
        yield browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
        browser.close()


def until(page, script, limit_s=120.0):
    deadline = time.monotonic() + limit_s
    while not (value := page.evaluate(script)):
        if time.monotonic() > deadline:
            raise TimeoutError(script)
        page.wait_for_timeout(10)
    return value


# -- the page -----------------------------------------------------------------------------------------------------


def large_recording(path, n_users, n_edges):
    """A recording of five moments of a graph of twenty groups."""
    rng = np.random.default_rng(0)
    groups = np.sort(rng.integers(0, 20, n_users))
    starts = np.searchsorted(groups, np.arange(21))
    edges = set()
    while len(edges) < n_edges:
        k = int(rng.integers(n_users))
        inside = rng.random() < 0.97
        l = int(rng.integers(starts[groups[k]], starts[groups[k] + 1])) if inside else int(rng.integers(n_users))
        if k != l:
            edges.add((min(k, l), max(k, l)))
    k, l = np.array(sorted(edges)).T
    w = rng.uniform(0.05, 1.0, n_edges)
    names = tuple(f"user {number}" for number in range(n_users))
    with Recorder(path) as recorder:
        recorder(RunInfo(f"{n_users} users", names, groups, tuple(f"group {g}" for g in range(20))))
        for moment in range(1, 6):
            some = rng.random(n_edges) < moment / 5
            recorder(SnapshotOffer(lambda some=some: large_snapshot(rng, n_users, k[some], l[some], w[some]), True))
        recorder(Stopped("All planned updates were made."))


def large_snapshot(rng, n_users, k, l, w):
    return Snapshot(
        phase="models",
        updates=n_users,
        k=k,
        l=l,
        w=w,
        directed=False,
        confidence=rng.uniform(0.1, 1, n_users),
        loss=rng.uniform(0, 1, n_users),
        accuracy=rng.uniform(0.5, 1, n_users),
        predictors=rng.integers(0, 200, (n_users, 5)),
        predictor_weights=rng.normal(size=(n_users, 5)),
        messages=rng.integers(0, 10_000, n_users),
        bits=rng.uniform(0, 1e6, n_users),
    )


def speed_of_page(page, n_users, n_edges):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.dadalog"
        large_recording(path, n_users, n_edges)
        with LivePage(path) as live:
            page.goto(live.url)
            until(page, "window.dada && dada.scene.drawn > 0")
            first_s = page.evaluate("performance.getEntriesByName('first-graph')[0].startTime") / 1000
            if page.evaluate("dada.edges.w.length") != n_edges:
                raise AssertionError("the page does not show all edges")
            kind = page.evaluate("dada.scene.renderer.kind")
            view_fps, view_edges = frames_while_dragging(page, (30, 450))
            user_fps, user_edges = frames_while_dragging(page, page.evaluate("dada.scene.screenPlace(0)"))
    return {
        "renderer": f"{kind}, drawn by the processor",
        "load": os.getloadavg()[0],
        "first_picture_s": first_s,
        "view_fps": view_fps,
        "view_edges": view_edges,
        "user_fps": user_fps,
        "user_edges": user_edges,
    }


# Moves the pressed pointer in circles, once per frame of the screen as a hand does; gives pictures of the graph per
# second and edges in the last of them.
DRAG = """([x, y, seconds]) => new Promise((done) => {
  const { scene } = window.dada;
  const [drawn, began] = [scene.drawn, performance.now()];
  let angle = 0;
  const move = (now) => {
    if (now > began + 1000 * seconds) {
      done([(1000 * (scene.drawn - drawn)) / (performance.now() - began), scene.shownEdges]);
      return;
    }
    angle += 0.08;
    const place = { clientX: x + 150 * Math.sin(angle), clientY: y - 150 * (1 - Math.cos(angle)) };
    scene.canvas.dispatchEvent(new PointerEvent("pointermove", { ...place, pointerId: 1, bubbles: true }));
    requestAnimationFrame(move);
  };
  requestAnimationFrame(move);
})"""


def frames_while_dragging(page, start):
    """Pictures of the graph per second, and edges in the last of them, while the pressed pointer moves in circles."""
    box = page.locator("#stage").bounding_box()
    x, y = box["x"] + start[0], box["y"] + start[1]
    page.mouse.move(x, y)
    page.mouse.down()
    result = page.evaluate(DRAG, [x, y, DRAG_S])
    page.mouse.up()
    return result


# -- the demo ------------------------------------------------------------------------------------------------------


def speed_of_demo(page):
    script = "from dada.cli.app import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        command = [sys.executable, "-c", script, "demo", "--live", "--out", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            line = process.stderr.readline()
            while not line.startswith("Watch it at "):
                line = process.stderr.readline()
            page.goto(line.split()[-1])
            open_s = time.monotonic() - began
            until(page, "window.dada && dada.scene.drawn > 0 && !!dada.edges")
            # The number of edges may stay as it is while their weights change.
            page.evaluate("window.first = dada.edges.w.join()")
            until(page, "dada.edges.w.join() !== window.first")
            moves_s = time.monotonic() - began
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
    return {"page_open_s": open_s, "graph_moves_s": moves_s}


# -- the cost ------------------------------------------------------------------------------------------------------


def cost_of_watching(page, repeats, n_viewers):
    users = moons(np.random.default_rng(1))
    predictors = Stumps(n=200, rule="feature-range").fit(users.train.X)
    regularizer = LogDegree(lam=0.3, delta=0.1)
    problem = task.problem(users.train, predictors, beta=10.0, mu1=1.0, regularizer=regularizer)
    plan, test = Plan(n_updates=6_000_000, graph_every=60_000), task.samples(users.test, predictors)
    train = task.samples(users.train, predictors)

    def timed(**options):
        wall, own = time.perf_counter(), time.process_time()
        result = run(problem, plan, np.random.default_rng(0), train=train, test=test, **options)
        return (time.perf_counter() - wall, time.process_time() - own), result

    timed()
    seconds = {"plain": [], "page": [], "crowd": []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            took, reference = timed()
            seconds["plain"].append(took)
            for name in ("page", "crowd"):
                path = Path(folder) / f"{name}-{repeat}.dadalog"
                with Recorder(path) as recorder, LivePage(path) as live:
                    page.goto(live.url)
                    with viewers(live.url, n_viewers) if name == "crowd" else nullcontext():
                        took, result = timed(observer=recorder)
                seconds[name].append(took)
                if not np.array_equal(result.models, reference.models):
                    raise AssertionError("a watched run gave another result")
    (plain_wall, plain_own), *others = (np.min(seconds[name], axis=0) for name in ("plain", "page", "crowd"))
    costs = {"load": os.getloadavg()[0], "plain_s": float(plain_wall)}
    for name, (wall, own) in zip(("page", "crowd"), others, strict=True):
        costs[f"{name}_wall"] = float(100 * (wall / plain_wall - 1))
        costs[f"{name}_own"] = float(100 * (own / plain_own - 1))
        medians = [np.median(seconds[kind], axis=0)[0] for kind in (name, "plain")]
        costs[f"{name}_median"] = float(100 * (medians[0] / medians[1] - 1))
    return costs


@contextmanager
def viewers(url, number):
    process = subprocess.Popen([sys.executable, __file__, "--follow", url, "--viewers", str(number)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def follow_many(url, number):
    os.nice(19)
    threads = [threading.Thread(target=follow, args=(url,), daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def follow(url):
    """A viewer without a browser: receives the length of the recording and fetches the missing bytes."""
    host, size = urlsplit(url).netloc, 0
    stream = http.client.HTTPConnection(host)
    stream.request("GET", "/events")
    answer = stream.getresponse()
    while line := answer.fp.readline():
        if line.startswith(b"data: ") and json.loads(line[6:])["size"] > size:
            connection = http.client.HTTPConnection(host)
            connection.request("GET", f"/log?from={size}")
            size += len(connection.getresponse().read())
            connection.close()


if __name__ == "__main__":
    main()
