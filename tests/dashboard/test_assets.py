import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
ASSETS = ROOT / "src" / "dada" / "dashboard" / "assets"


def test_the_page_was_built_from_these_sources():
    digest = hashlib.sha256()
    sources = sorted(WEB.glob("src/*"), key=lambda path: path.name)
    for path in [WEB / "build.mjs", WEB / "package.json", WEB / "package-lock.json", *sources]:
        digest.update(path.read_bytes())
    mark = f"built from {digest.hexdigest()[:16]}"
    for name in ("app.js", "app.css"):
        assert mark in (ASSETS / name).read_text(encoding="utf-8")[:60], "the sources have changed: run make web"


def test_the_page_names_no_other_place_to_load_from():
    names = {"http://www.w3.org/2000/svg"}
    for name in ("index.html", "app.js", "app.css"):
        assert set(re.findall(r"https?://[\w./-]+", (ASSETS / name).read_text(encoding="utf-8"))) <= names


def test_the_lock_file_names_no_registry():
    assert "http" not in re.sub(
        r'"(url|funding)": "[^"]*"', "", (WEB / "package-lock.json").read_text(encoding="utf-8")
    )


@pytest.mark.skipif(
    shutil.which("node") is None or not (WEB / "node_modules").is_dir(), reason="needs node and npm ci in web"
)
def test_the_scripts_of_the_page_pass_their_own_tests():
    done = subprocess.run(
        ["node", "--test", *map(str, WEB.glob("test/*.test.js"))], cwd=WEB, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
