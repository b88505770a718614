"""Pages: what they compute from results, and the files they write."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from dada.experiments.catalogue import CATALOGUE
from dada.experiments.kappa import distance, graph_study, reached
from dada.experiments.page import Figure, Heading, Page, PageLinks, Table
from dada.experiments.protocol import summarise
from dada.experiments.table1 import (
    BUDGET_FACTORS,
    IN_PAPER,
    Published,
    accuracy_of,
    agrees,
    best_accuracy_of,
    budget_accuracy_of,
)
from dada.experiments.tasks import present
from dada.experiments.traffic import Curve, joined_curve
from dada.plot.theme import new_figure


def drawing(*, theme):
    with theme.applied():
        figure, (ax,) = new_figure(2, 2)
        ax.plot([0, 1], [1, 0])
    return figure


@pytest.fixture
def page():
    blocks = [
        "A & B.",
        Table("Numbers", ["method", "value"], [["a|b", "1"]]),
        Heading("More"),
        ["first", "second"],
        PageLinks([("other", "Other", "Table 9")]),
        Figure("line", "A line.", drawing),
    ]
    return Page("demo", "A demo", "What it shows.", blocks, {"x": [0.1, None]})


def test_the_same_page_gives_the_same_bytes_in_every_file(page, tmp_path):
    facts = {"seed": 0, "commit": None}
    for folder in ("one", "two"):
        page.write(tmp_path / folder, facts)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["demo-line.png", "demo-line.svg", "demo.html", "demo.json", "demo.md"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_page_has_the_same_content_in_all_formats(page):
    facts = {"seed": 7}
    markdown, html = page.markdown(facts), page.html(facts)
    assert "| a\\|b | 1 |" in markdown
    assert "![A line.](demo-line.png)" in markdown
    assert "- [Other](other.md) (Table 9)" in markdown
    assert "<td>a|b</td>" in html
    assert '<a href="other.html">Other</a> (Table 9)' in html
    assert "A &amp; B." in html
    assert html.count("base64") == 2
    assert json.loads(page.json(facts)) == {"name": "demo", "made_with": facts, "x": [0.1, None]}
    assert all("seed 7" in text for text in (markdown, html))


def test_the_time_is_shown_but_not_among_the_results(page, tmp_path):
    page.write(tmp_path, {"seed": 7}, seconds=12)
    assert "processor time 12 s" in (tmp_path / "demo.md").read_text()
    assert "12 s" not in (tmp_path / "demo.json").read_text()


def test_nan_is_refused(page):
    page.data["y"] = float("nan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.json({})


@pytest.mark.parametrize("dataset", ["harws", "vehicle", "computer", "school"])
def test_published_columns_are_complete(dataset):
    assert all(accuracy_of(dataset, method) for method in IN_PAPER)
    assert all(budget_accuracy_of(dataset, "dada-learned", factor) for factor in BUDGET_FACTORS)
    assert best_accuracy_of(dataset) == max(accuracy_of(dataset, method).mean for method in IN_PAPER)


def test_the_paper_has_no_number_of_our_part_of_vehicle_nor_of_our_methods():
    assert accuracy_of("vehicle_partial", "dada-learned") is None
    assert best_accuracy_of("vehicle_partial") is None
    assert accuracy_of("harws", "dada-mixed") is None
    assert budget_accuracy_of("computer", "perso-lin-learned", 500) is None


def test_a_budget_reaches_the_last_point_it_pays_for():
    curve = Curve(np.array([0, 5, 10]), np.array([50.0, 60.0, 70.0]), np.array([0.0, 100.0, 120.0]),
                  np.array([0.0, 10.0, 20.0]))  # fmt: skip
    assert curve.at(99, "bits") is None
    assert curve.at(100, "bits") == 60.0
    assert curve.at(99, "model_bits") == 70.0


def test_a_short_and_a_whole_run_become_one_curve():
    early = {"updates": [0, 1, 2], "test": [0.5, 0.6, 0.7], "bits": [0, 9, 10], "graph_bits": [0, 8, 8]}
    whole = {"updates": [0, 2, 4], "test": [0.5, 0.7, 0.8], "bits": [0, 10, 20], "graph_bits": [0, 8, 12]}
    curve = joined_curve({"trace": early}, {"trace": whole})
    assert curve.updates.tolist() == [0, 1, 2, 4]
    assert curve.model_bits.tolist() == [0, 1, 2, 8]
    np.testing.assert_allclose(curve.test, [50, 60, 70, 80])


def test_the_point_where_a_target_is_reached_is_interpolated():
    run = {"objective": [10.0, 6.0, 2.0], "bits": [0.0, 100.0, 200.0]}
    np.testing.assert_allclose(distance(run, 0.0), [1, 0.6, 0.2])
    assert reached(run, 0.0, 0.4, "bits") == pytest.approx(150)
    assert reached(run, 0.0, 0.1, "bits") is None


def test_graph_steps_descend_and_kept_models_save_bits():
    from dada.data import Stumps, moons

    train = moons(0, n_users=20, n_test=1).train
    predictors = Stumps(n=40).fit(train.X)
    settings = {"beta": 5.0, "mu": 1.0, "lam": 1.0, "delta": 1.0, "updates": 20, "wakeups": 200}
    for step in ("exact", "lipschitz"):
        result = graph_study(train, predictors, settings | {"kappa": 4, "graph_step": step}, np.random.default_rng(0))
        assert (np.diff(result["objective"]) <= 1e-9).all()
        assert (np.diff(result["bits"]) > 0).all()
        assert all(kept <= sent for kept, sent in zip(result["cached_bits"], result["bits"], strict=True))
        assert result["wakeups"][-1] == 200


def test_agreement_allows_for_chance_and_for_both_means():
    def result(mean, pooled, std):
        run = {"test": [mean / 100], "test_pooled": pooled / 100, "neighbours": None, "bits": None}
        return summarise([run]), Published(70.0, std)

    assert agrees(*result(70.4, 60.0, None))
    assert agrees(*result(60.0, 69.6, None))
    assert not agrees(*result(71.0, 71.0, None))
    assert agrees(*result(71.0, 71.0, 0.6))


def test_missing_data_are_named_with_the_way_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("DADA_DATA", str(tmp_path))
    assert present(("school",)) == []
    with pytest.raises(FileNotFoundError, match="dada datasets fetch school"):
        CATALOGUE["table1"].datasets()
    with pytest.raises(FileNotFoundError, match="no dataset harws; to get it, run: dada datasets fetch harws"):
        CATALOGUE["size"].datasets("harws")
    assert CATALOGUE["size"].datasets()[0] == []
    assert CATALOGUE["kappa"].datasets() == ([], [])


def test_the_part_of_vehicle_is_used_only_if_the_whole_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("DADA_DATA", str(tmp_path))
    (tmp_path / "vehicle_partial.parquet").touch()
    found, notes = CATALOGUE["table1"].datasets()
    assert found == ["vehicle_partial"]
    assert any(note.startswith("vehicle is left out") for note in notes)
    (tmp_path / "vehicle.parquet").touch()
    assert CATALOGUE["table1"].datasets()[0] == ["vehicle"]


def test_the_packages_of_a_page_are_loaded_before_its_jobs(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    replace(CATALOGUE["kappa"], packages=("colorsys",)).datasets()
    assert "colorsys" in sys.modules


def test_every_page_names_its_place_in_the_paper():
    assert list(CATALOGUE) == ["table1", "table2", "moons", "graph", "kappa", "size", "budget", "moons100", "beyond",
                               "messages", "tables", "sealed", "fresh", "untouched", "privacy"]  # fmt: skip
    assert all(entry.source and entry.title for entry in CATALOGUE.values())
