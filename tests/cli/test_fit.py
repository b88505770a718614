"""`dada fit`, `predict` and `inspect` on tables as people have them."""

import json
import os
import re
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import typer
from numpy.testing import assert_array_equal
from typer.testing import CliRunner

from dada import DadaClassifier, Population, Privacy, load_model
from dada.cli import fit as fit_command
from dada.cli.app import app
from dada.cli.private_fits import about_privacy, budget_lines, show_result
from dada.core.plan import Status
from dada.dashboard.records import LogReader, Note, Recorder, decode
from dada.data import ParquetUsers, Trees, moons
from dada.estimators.stream import fit_parquet
from dada.fitting.boosting import Grower
from dada.fitting.models import Decided
from dada.fitting.settings import Settings
from dada.fitting.trees import Grove

COLUMNS = ["east", "north"]


def table(people):
    owners = [f"u{user}" for user in people.users]
    came = np.where(people.y > 0, "yes", "no")
    return pl.DataFrame(people.X[:, :2], schema=COLUMNS).with_columns(person=pl.Series(owners), came=pl.Series(came))


def dada(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    users = moons(3, n_users=12, n_test=6)
    table(users.train).write_csv(folder / "train.csv")
    table(users.test).write_parquet(folder / "new.parquet")
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    result = dada("fit", folder / "train.csv", "--user", "person", "--label", "came", "-o", folder / "m.dada",
                  "--updates", 40, "--json")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_fit_says_what_it_learned_from_and_what_learning_together_brings(folder, fitted):
    train = pl.read_csv(folder / "train.csv")
    assert (fitted["users"], fitted["rows"], fitted["features"]) == (12, train.height, 2)
    assert (folder / "m.dada").exists()
    assert 0 < fitted["held_out"]["rows"] < train.height
    scores = fitted["held_out"]
    for name in ("together", "alone", "one_model", "commonest"):
        assert 0.0 <= scores[name]["accuracy_over_rows"] <= 1.0
        assert 0.0 <= scores[name]["accuracy_over_users"] <= 1.0
        assert scores[name]["log_loss"] > 0
    # Two moons, rotated for every user: no single model fits them all.
    assert scores["together"]["accuracy_over_rows"] > scores["commonest"]["accuracy_over_rows"]


def test_fit_reports_each_choice_with_the_scores_that_decided_it(fitted):
    chosen = fitted["chosen"]
    first, *others = chosen["reasons"]
    everyone, evidence = (chosen["trials"][f"{chosen['predictors']}, {graph}"] for graph in ("everyone", "evidence"))
    start = {"everyone": "Everyone learns from everyone alike: a graph by evidence did no",
             "evidence": "Users learn from those whose models do best on their rows: this did better"}  # fmt: skip
    assert first.startswith(start[chosen["graph"]])
    pair = (evidence, everyone)
    assert f"{100 * pair[0]:.1f} against {100 * pair[1]:.1f} %" in first
    assert any("stumps" in reason for reason in others)
    assert any(f"mu {chosen['mu']:.3g}" in reason for reason in others)


def test_choices_are_made_once(folder):
    """The fit to all rows takes over what the comparison chose: its trials are those of the training part."""
    asked = dada("fit", folder / "train.csv", "--user", "person", "--label", "came", "-o", folder / "asked.dada",
                 "--updates", 5, "--graph", "everyone", "--mu", 0.1, "--json")  # fmt: skip
    chosen = json.loads(asked.stdout)["chosen"]
    assert chosen["reasons"][0] == "Everyone learns from everyone alike, as asked for."
    assert set(chosen["trials"]) >= {f"{family}, everyone, whole" for family in ("linear", "clipped", "stumps")}
    assert all(", everyone, whole" in trial for trial in chosen["trials"])


def test_the_report_shows_every_rival_by_name(folder):
    shown = dada("fit", folder / "train.csv", "--user", "person", "--label", "came", "-o", folder / "shown.dada",
                 "--updates", 5).stdout  # fmt: skip
    for part in ("learning together", "each user alone", "one model for all", "always the commonest label",
                 "accuracy over rows", "over users", "log-loss"):  # fmt: skip
        assert part in shown


def test_the_same_seed_gives_the_same_file(folder, fitted):
    again = folder / "again.dada"
    dada("fit", folder / "train.csv", "--user", "person", "--label", "came", "-o", again, "--updates", 40, "--json")
    assert again.read_bytes() == (folder / "m.dada").read_bytes()


def test_every_row_gets_its_own_users_label(folder, fitted):
    out = folder / "predicted.csv"
    result = dada("predict", folder / "m.dada", folder / "new.parquet", "--user", "person", "-o", out)
    assert result.exit_code == 0, result.stderr
    predicted, given = pl.read_csv(out), pl.read_parquet(folder / "new.parquet")
    assert predicted["person"].to_list() == given["person"].to_list()
    assert set(predicted["label"]) == {"yes", "no"}
    assert ((predicted["score"] > 0.5) == (predicted["label"] == "yes")).all()
    # The model file remembers which column named the user.
    printed = dada("predict", folder / "m.dada", folder / "new.parquet")
    assert printed.stdout.splitlines() == out.read_text().splitlines()


def test_inspect_names_neighbours_and_predictors(folder, fitted):
    one = json.loads(dada("inspect", folder / "m.dada", "--user", "u3", "--json").stdout)
    assert one["user"] == "u3"
    assert one["n_neighbours"] >= len(one["neighbours"]) > 0
    assert all(neighbour["user"] != "u3" for neighbour in one["neighbours"])
    assert any("east" in row["predictor"] or "north" in row["predictor"] for row in one["predictors"])
    dada("inspect", folder / "m.dada", "-o", folder / "graph.graphml")
    assert "u3" in (folder / "graph.graphml").read_text()
    assert dada("inspect", folder / "m.dada", "-o", folder / "graph.png").exit_code == 0
    assert (folder / "graph.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("options", [(), ("--user", "u3")], ids=["all", "one"])
def test_inspect_explains_columns_in_bars_and_words(folder, fitted, options):
    found = json.loads(dada("inspect", folder / "m.dada", *options, "--json").stdout)
    shares = [row["share"] for row in found["importances"]]
    assert {row["column"] for row in found["importances"]} <= set(COLUMNS)
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares, reverse=True)
    strongest = found["effects"][0]
    assert strongest["label"] == "yes"
    shown = dada("inspect", folder / "m.dada", *options).stdout
    direction = "rises" if strongest["effect"] > 0 else "falls"
    assert f"the score of 'yes' {direction} by {abs(strongest['effect']):.3g}" in " ".join(shown.split())
    assert "████" in shown
    assert f"{strongest['effect']:+.3g}" in shown
    assert "mean weight" not in shown


def test_new_users_join_a_model_file(folder, fitted, tmp_path):
    rows = pl.read_csv(folder / "train.csv").filter(pl.col("person").is_in(["u1", "u2"]))
    renamed = rows.with_columns(pl.col("person").replace({"u1": "eve", "u2": "flo"}))
    renamed.write_csv(tmp_path / "new.csv")
    found = json.loads(
        dada("add-user", folder / "m.dada", tmp_path / "new.csv", "-o", tmp_path / "more.dada", "--json").stdout
    )
    assert (set(found["added"]), found["users"]) == ({"eve", "flo"}, 14)
    before, after = load_model(folder / "m.dada"), load_model(tmp_path / "more.dada")
    assert_array_equal(after.models_[:12], before.models_)
    assert dada("predict", tmp_path / "more.dada", tmp_path / "new.csv").exit_code == 0
    assert dada("inspect", tmp_path / "more.dada", "-o", tmp_path / "graph.png").exit_code == 0
    # The user column may be absent if the user is named.
    renamed.filter(pl.col("person") == "eve").drop("person").write_csv(tmp_path / "eve.csv")
    one = dada("add-user", folder / "m.dada", tmp_path / "eve.csv", "--user", "eve", "-o", tmp_path / "eve.dada")
    assert "eve learns from" in one.stdout
    assert_array_equal(load_model(tmp_path / "eve.dada").models_[12], after.models_[12])
    again = dada("add-user", tmp_path / "eve.dada", tmp_path / "eve.csv", "--user", "eve")
    assert again.exit_code == 2
    assert "user must be a new one, got 'eve'" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "train.csv", "--user", "persn", "--label", "came"), "did you mean 'person'?"),
        (("predict", "m.dada", "new.parquet", "--user", "peson"), "did you mean 'person'?"),
        (("add-user", "m.dada", "nowhere.csv"), "there is no such file"),
        (("add-user", "m.dada", "train.csv", "--user", "eve"), "no row of user 'eve'"),
        (("fit", "train.csv", "--user", "nobody", "--label", "came"), "no column 'nobody'"),
        (("fit", "train.csv", "--user", "person", "--label", "came", "--beta", "0"), "beta must be > 0"),
        (("predict", "m.dada", "new.parquet", "--user", "nobody"), "no column 'nobody'"),
        (("predict", "train.csv", "new.parquet", "--user", "person"), "train.csv"),
        (("inspect", "m.dada", "--user", "u99"), "no user 'u99'"),
        (("inspect", "m.dada", "-o", "graph.gif"), "must end in .png, .svg or .graphml"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(folder, fitted, arguments, message):
    paths = [folder / argument if "." in argument and argument[0] != "-" else argument for argument in arguments]
    result = dada(*paths)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_users_the_model_does_not_know_are_named_or_averaged(folder, fitted, tmp_path):
    stranger = tmp_path / "stranger.csv"
    pl.DataFrame({"east": [0.5], "north": [0.1], "person": ["eve"]}).write_csv(stranger)
    refused = dada("predict", folder / "m.dada", stranger, "--user", "person")
    assert refused.exit_code == 2
    assert "eve" in refused.stderr
    average = dada("predict", folder / "m.dada", stranger, "--user", "person", "--unknown-user", "average")
    assert average.exit_code == 0


def test_a_fit_goes_on_from_its_checkpoint_to_the_same_model(folder, tmp_path):
    fit = ["fit", folder / "train.csv", "--user", "person", "--label", "came", "--updates", 40, "--holdout", 0]
    fit += ["--checkpoint", tmp_path / "half-way"]
    assert dada(*fit, "-o", tmp_path / "first.dada").exit_code == 0
    assert (tmp_path / "half-way").exists()
    assert dada(*fit, "-o", tmp_path / "second.dada").exit_code == 0
    assert (tmp_path / "first.dada").read_bytes() == (tmp_path / "second.dada").read_bytes()


def test_a_file_read_some_users_at_a_time_gives_the_model_of_a_folder_read_at_once(folder, tmp_path):
    (tmp_path / "all").mkdir()
    path = tmp_path / "all" / "train.parquet"
    pl.read_csv(folder / "train.csv").write_parquet(path)
    fit = ["--user", "person", "--label", "came", "--updates", 20, "--graph", "learned", "--lam", 1]
    assert dada("fit", tmp_path / "all", *fit, "-o", tmp_path / "at-once.dada").exit_code == 0
    assert dada("fit", path, "--stream", *fit, "-o", tmp_path / "streamed.dada").exit_code == 0
    assert (tmp_path / "streamed.dada").read_bytes() == (tmp_path / "at-once.dada").read_bytes()
    model = DadaClassifier(graph="learned", n_updates=20, lam=1.0, random_state=0)
    users = ParquetUsers.open(path, user="person", label="came")
    fit_parquet(model, users, users_at_once=5)
    assert_array_equal(model.models_, load_model(tmp_path / "at-once.dada").models_)


def test_the_checkpoint_of_another_fit_is_refused(folder, tmp_path):
    fit = ["fit", folder / "train.csv", "--user", "person", "--label", "came", "--holdout", 0]
    fit += ["--checkpoint", tmp_path / "half-way", "-o", tmp_path / "m.dada", "--updates"]
    assert dada(*fit, 10).exit_code == 0
    other = dada(*fit, 20)
    assert other.exit_code == 2
    assert "belongs to another run" in other.stderr


@pytest.fixture(scope="module")
def stays(tmp_path_factory):
    """A table with a label of three classes, one of numbers, and one of few whole numbers."""
    rng = np.random.default_rng(0)
    X, owners = rng.normal(size=(90, 2)), np.tile(["ann", "bob", "cid"], 30)
    kinds = np.array(["short", "middle", "long"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    frame = pl.DataFrame(X, schema=COLUMNS).with_columns(
        person=pl.Series(owners),
        kind=pl.Series(kinds),
        days=pl.Series(10 + 3 * X[:, 0]),
        stars=pl.Series(np.digitize(X[:, 0], [-0.5, 0.5])),
    )
    path = tmp_path_factory.mktemp("stays") / "stays.csv"
    frame.write_csv(path)
    return path


def fit_stays(path, label, *options):
    others = [column for column in ("kind", "days", "stars") if column != label]
    drop = [part for column in others for part in ("--drop", column)]
    result = dada("fit", path, "--user", "person", "--label", label, *drop, "-o", path.with_suffix(f".{label}"),
                  "--updates", 60, "--json", *options)  # fmt: skip
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_label_of_three_classes_is_learned_and_predicted(stays):
    fitted = fit_stays(stays, "kind")
    assert fitted["task"] == "classes"
    assert fitted["held_out"]["together"]["accuracy_over_rows"] > 0.6
    rows = json.loads(dada("predict", fitted["model"], stays, "--json").stdout)
    given = pl.read_csv(stays)
    assert [row["person"] for row in rows] == given["person"].to_list()
    assert np.mean([row["label"] == kind for row, kind in zip(rows, given["kind"], strict=True)]) > 0.8


def test_a_label_of_numbers_is_learned_and_predicted(stays):
    fitted = fit_stays(stays, "days")
    assert fitted["task"] == "numbers"
    assert fitted["train_accuracy"] is None
    together, mean = (fitted["held_out"][name] for name in ("together", "mean"))
    assert together["r2"] > 0.6
    assert together["error_over_rows"] < mean["error_over_rows"]
    assert together["error_over_users"] < mean["error_over_users"]
    assert mean["r2"] <= 0
    rows = json.loads(dada("predict", fitted["model"], stays, "--json").stdout)
    assert np.corrcoef([row["label"] for row in rows], pl.read_csv(stays)["days"])[0, 1] > 0.9
    shown = dada("fit", stays, "--user", "person", "--label", "days", "--drop", "kind", "-o",
                 stays.with_suffix(".again"), "--updates", 5).stdout  # fmt: skip
    for part in ("R2", "mean absolute error over rows", "always the mean"):
        assert part in shown


def test_few_whole_numbers_are_classes_unless_said_otherwise(stays):
    assert fit_stays(stays, "stars")["task"] == "classes"
    assert fit_stays(stays, "stars", "--task", "numbers")["task"] == "numbers"


def test_text_is_no_number(stays):
    result = dada("fit", stays, "--user", "person", "--label", "kind", "--task", "numbers")
    assert result.exit_code == 2
    assert "column 'kind' must hold numbers" in result.stderr


def test_a_private_fit_reports_what_was_sent_and_holds_nothing_out(folder):
    columns = ["--user", "person", "--label", "came", "-o", folder / "p.dada", "--updates", 40, "--json"]
    labels = dada("fit", folder / "train.csv", *columns, "--epsilon", 4, "--protects", "labels",
                  "--ledger", folder / "released")  # fmt: skip
    assert labels.exit_code == 0, labels.stderr
    found = json.loads(labels.stdout)
    assert (found["held_out"], found["privacy"]["sent"]) == (None, True)
    assert load_model(folder / "p.dada").privacy.epsilon == 4.0
    assert (found["privacy"]["spent"], found["privacy"]["delta"]) == (4.0, 0.0)
    assert set(found["privacy"]["held_out"]) == {"alone", "private", "no_privacy"}
    rows = json.loads(dada("fit", folder / "train.csv", *columns, "--epsilon", 0.1, "--ranges", -3, 3).stdout)
    assert rows["privacy"]["reason"].startswith("Nothing is sent")
    assert rows["privacy"]["spent"] == 0.0
    scores = rows["privacy"]["held_out"]
    assert scores["private"] == scores["alone"]


def test_a_private_fit_says_what_it_spent_and_brought(tmp_path):
    rng = np.random.default_rng(0)
    X, users = rng.uniform(-1, 1, (1200, 2)), np.repeat(np.arange(60), 20)
    lines = [f"{u},{'north' if u % 2 else 'south'},{a:.3f},{b:.3f},{int(a + b > 0)}"
             for u, (a, b) in zip(users.tolist(), X.tolist(), strict=True)]  # fmt: skip
    (tmp_path / "t.csv").write_text("\n".join(["person,city,a,b,came", *lines]))
    columns = ["--user", "person", "--label", "came", "-o", tmp_path / "m.dada", "--ranges", -1, 1]
    shown = dada("fit", tmp_path / "t.csv", *columns, "--epsilon", 1, "--secure-sum", "--group", "city")
    assert shown.exit_code == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    assert "Each user spent epsilon 1 of 1, 0 is left." in text
    assert "On rows held out at home (accuracy):" in text
    assert "if nothing is sent" in text
    assert load_model(tmp_path / "m.dada").privacy.groups[0] == (0, "south")
    silent = dada("fit", tmp_path / "t.csv", *columns, "--epsilon", 1, "--drop", "city", "--holdout", 0)
    assert "held out at home" not in silent.stdout


def test_a_private_fit_says_what_was_released_and_when(tmp_path):
    rng = np.random.default_rng(1)
    X, users = rng.uniform(-1, 1, (600, 2)), np.repeat(np.arange(20), 30)
    lines = [f"{u},{a:.3f},{b:.3f},{int(a > b)}" for u, (a, b) in zip(users.tolist(), X.tolist(), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["person,a,b,came", *lines]))
    columns = ["--user", "person", "--label", "came", "-o", tmp_path / "m.dada", "--updates", 20, "--holdout", 0]
    ledger = tmp_path / "released"

    def fitted(*options, name="run"):
        made = dada("fit", tmp_path / "t.csv", *columns, *options, "--record", tmp_path / name)
        assert made.exit_code == 0, made.stderr
        notes = [decode(content) for content in LogReader(tmp_path / name)]
        return " ".join(made.stdout.split()), [note.text for note in notes if isinstance(note, Note)]

    first, page = fitted("--epsilon", 8, "--ranges", -1, 1, "--ledger", ledger)
    os.utime(ledger, (1e9, 1e9))
    again, page_again = fitted("--epsilon", 8, "--ranges", -1, 1, "--ledger", ledger)
    (digest,) = re.findall("SHA-256 ([0-9a-f]{64})", first)
    assert digest in again
    assert f"in {ledger}, last written 2001-09-0" in again
    assert "Released: 20 releases, " in page[0]
    assert digest in page_again[0]
    labels, page = fitted("--epsilon", 2, "--protects", "labels")
    assert "another fit will spend the budget again" in labels
    assert page[0].startswith("Each user spent epsilon 2 of 2, 0 is left. Released: labels after randomised response")
    sums, _ = fitted("--epsilon", 8, "--ranges", -1, 1, "--secure-sum")
    assert "Released: sums of users' statistics; made 20" in sums


def test_the_page_of_a_fit_to_released_rows_shows_home_models_and_the_budget(tmp_path):
    """Such a fit has no steps to watch."""
    rng = np.random.default_rng(2)
    X, users = rng.uniform(-1, 1, (400, 1)), np.repeat(np.arange(20), 20)
    people = Population.from_arrays(X, X[:, 0] > 0, users)
    for epsilon, is_sent in ((8.0, True), (1e-3, False)):
        model = DadaClassifier(privacy=Privacy(epsilon, ranges=(-1, 1)), random_state=0).fit_population(people)
        with Recorder(tmp_path / "run") as recorder:
            show_result(recorder, model, people, "visits")
        info, note, edges, states, stop = [decode(content) for content in LogReader(tmp_path / "run")]
        assert (info.title, len(info.users), stop.status) == ("visits", 20, model.status_.value)
        assert note.text == " ".join(budget_lines(about_privacy(model)))
        assert edges.total == 190 * is_sent
        assert np.frombuffer(states.messages, "<f8").tolist() == [19.0 * is_sent] * 20


def test_a_private_fit_grows_no_trees(tmp_path, monkeypatch):
    """But for the comparison with no privacy, which `--holdout 0` skips; a fit without privacy grows some."""
    rng, grown = np.random.default_rng(3), []
    X, users = rng.uniform(-1, 1, (1200, 2)), np.repeat(np.arange(20), 60)
    lines = [f"{u},{a:.3f},{b:.3f},{int((a > 0) == (b > 0))}"
             for u, (a, b) in zip(users.tolist(), X.tolist(), strict=True)]  # fmt: skip
    (tmp_path / "t.csv").write_text("\n".join(["person,a,b,came", *lines]))

    def note(kind):
        make = kind.__init__

        def noted(*given):
            grown.append(given)
            make(*given)

        monkeypatch.setattr(kind, "__init__", noted)

    note(Grower)
    note(Grove)
    columns = ["--user", "person", "--label", "came", "-o", tmp_path / "m.dada", "--holdout", 0]
    for options in (("--protects", "labels"), ("--ranges", -1, 1)):
        made = dada("fit", tmp_path / "t.csv", *columns, "--epsilon", 8, *options)
        assert (made.exit_code, grown) == (0, []), made.stderr
    dada("fit", tmp_path / "t.csv", *columns)
    assert grown


def test_privacy_of_rows_without_ranges_is_refused(folder):
    refused = dada("fit", folder / "train.csv", "--user", "person", "--label", "came", "--epsilon", 1)
    assert refused.exit_code != 0
    assert "ranges must be given to protect rows" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("graph", "told", "table"),
    [
        ("everyone", "Everyone learns from everyone alike.", None),
        ("none", "Users learn alone.", None),
        ("learned", "Users learn from those with similar models.", "most connected"),
        ("evidence", "Users learn from those whose models do best on their rows.", "most followed"),
    ],
)
def test_inspect_tells_who_learns_from_whom(folder, tmp_path, graph, told, table):
    path = tmp_path / "m.dada"
    dada("fit", folder / "train.csv", "--user", "person", "--label", "came", "-o", path, "--graph", graph,
         "--updates", 10, "--holdout", 0)  # fmt: skip
    shown = dada("inspect", path).stdout
    assert told in shown
    # Edges to random users mean nothing.
    assert [name for name in ("most connected", "most followed") if name in shown] == ([table] if table else [])
    of_one = dada("inspect", path, "--user", "u3").stdout
    assert ("learns from everyone alike" in of_one) == (graph == "everyone")
    assert ("followers" in of_one) == (graph != "everyone")
    found = json.loads(dada("inspect", path, "--json").stdout)
    assert found["graph"] == graph
    counts = [row["followers"] for row in found["most_connected"]]
    if graph == "evidence":
        assert counts == sorted(counts, reverse=True)
        assert counts[0] > 0


@pytest.mark.parametrize("interrupted", ["together", "alone", "one model", "all rows"])
@pytest.mark.parametrize("raises", [True, False])
def test_ctrl_c_leaves_the_best_model_so_far_or_says_why_not(folder, tmp_path, monkeypatch, interrupted, raises):
    stages, learn = ["together", "alone", "one model", "all rows"], fit_command._fitted
    begun = []

    def fitted_until(*arguments):
        begun.append(len(begun))
        is_last = stages[begun[-1]] == interrupted
        if is_last and raises:
            raise KeyboardInterrupt
        model = learn(*arguments)
        if is_last:
            model.status_ = Status.INTERRUPTED
        return model

    monkeypatch.setattr(fit_command, "_fitted", fitted_until)
    path = tmp_path / "m.dada"
    result = dada("fit", folder / "train.csv", "--user", "person", "--label", "came", "-o", path, "--updates", 5)
    assert len(begun) == 1 + stages.index(interrupted)
    if interrupted == "together" and raises:
        assert result.exit_code == 130
        assert "interrupted before the first model was learned: there is nothing to write" in result.stderr
        assert not path.exists()
        return
    assert result.exit_code == 0
    of_all_rows = interrupted == "all rows" and not raises
    assert ("its state so far is kept" if of_all_rows else "kept is the model of all rows but those held out") in (
        result.stdout
    )
    assert ("each user alone" in result.stdout) == (interrupted == "all rows")
    assert load_model(path).n_users_ == 12


@pytest.mark.parametrize(
    "command",
    ["demo", "fit", "predict", "add-user", "inspect", "reproduce", "report", "peer summarise", "peer predict"],
)
def test_where_to_write_has_the_same_names_in_all_commands(command):
    options = typer.main.get_command(app)
    for name in command.split():
        options = options.commands[name]
    (places,) = (option.opts for option in options.params if "--out" in option.opts)
    assert places == ["-o", "--output", "--out"]


@pytest.mark.parametrize("family", ["linear", "stumps", "boosted"])
def test_base_predictors_can_be_asked_for(folder, tmp_path, family):
    path = tmp_path / "m.dada"
    result = dada("fit", folder / "train.csv", "--user", "person", "--label", "came", "--out", path, "--json",
                  "--updates", 10, "--graph", "everyone", "--predictors", family, "--holdout", 0)  # fmt: skip
    assert result.exit_code == 0, result.stderr
    kinds = {part["kind"] for part in json.loads(dada("inspect", path, "--json").stdout)["parts"]}
    assert ("leaves" in kinds) == (family == "boosted")
    assert family == "boosted" or ("stumps" in kinds) == (family == "stumps")


def test_users_with_few_rows_hold_out_one_each_and_single_rows_none(folder, tmp_path):
    train = pl.read_csv(folder / "train.csv")
    for rows, told in ((3, "held-out rows of"), (1, "No user has two rows: none was held out")):
        train.group_by("person", maintain_order=True).head(rows).write_csv(tmp_path / "few.csv")
        shown = dada("fit", tmp_path / "few.csv", "--user", "person", "--label", "came", "-o", tmp_path / "m.dada",
                     "--updates", 5, "--graph", "everyone")  # fmt: skip
        assert shown.exit_code == 0, shown.stderr
        assert told in shown.stdout


def test_calibration_is_told_by_what_it_improves():
    found = {"error_before": 0.042, "error_after": 0.026, "log_loss_before": 0.6, "log_loss_after": 0.58}
    assert "off by 2.6 points instead of 4.2" in fit_command._calibrated(found)
    found |= {"error_after": 0.0419}
    assert "likelier (log-loss 0.580 instead of 0.600); off by 4.2 points" in fit_command._calibrated(found)
    found |= {"log_loss_after": 0.6}
    assert "temperatures did no better" in fit_command._calibrated(found)


def test_models_with_interactions_name_the_comparisons_of_simpler_ones():
    """Evidence was chosen with stumps; trees then beat these along the same graph."""
    trials = {
        "linear, everyone, whole": 0.80,
        "stumps, everyone, whole": 0.92,
        "stumps, everyone": 0.93,
        "stumps, evidence": 0.95,
        "stumps, evidence, mu x 0.25, whole": 0.96,
        "trees, evidence, mu x 0.25, whole": 0.98,
    }
    decided = Decided(Trees(), "trees", Settings(graph="evidence", mu=0.1), trials, mu_scale=0.25)
    model = SimpleNamespace(settings_={"graph": "evidence", "mu": 0.1}, graph="auto", mu=0.1)
    graph, family, *_ = fit_command._reasons(model, decided)
    assert "this did better (95.0 against 93.0 %) than everyone alike" in graph
    assert family.startswith("Models use trees that users grow: these did better (98.0 against 96.0 %)")
