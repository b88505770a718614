"""Commands that read a model file: `dada predict`, `dada add-user` and `dada inspect`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dada import atomic
from dada.cli.console import (
    OUTPUT,
    AsJson,
    mean_of_users,
    number,
    percent,
    print_json,
    print_table,
    short,
    stdout,
    write,
)
from dada.cli.explained import explained, kinds_of, show_explanation, strongest_predictors, who_learns
from dada.cli.pipelines import inspected, is_pipeline, only_model, rows_through, steps_in_words

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from dada import DadaClassifier, DadaRegressor

    Model = DadaClassifier | DadaRegressor


ModelFile = Annotated[Path, typer.Argument(help="Model file, as written by `dada fit`.")]


def predict(
    model: ModelFile,
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with the columns of the training table.")],
    user: Annotated[
        str | None, typer.Option("--user", help="Column with the user of each row; by default as in the fit.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(*OUTPUT, help="CSV or Parquet file to write; by default standard output."),
    ] = None,
    unknown_user: Annotated[
        Literal["error", "average"],
        typer.Option(help="For unknown users: refuse, or use the mean of all models."),
    ] = "error",
    as_json: AsJson = False,
) -> None:
    """Predict the target of every row of a table.

    Writes the user, the prediction and, for classes, a score: of the second of two classes, or of the predicted one of
    several.

    **Examples**

    - `dada predict visits.dada new.parquet -o predicted.csv`
    - `dada predict visits.dada new.csv --user name --unknown-user average`
    """
    frame = predictions(model, file, user, unknown_user)
    if output is not None:
        write_table(frame, output)
        result = {"rows": frame.height, "output": str(output)}
        message = f"{frame.height} rows written to [bold]{output}[/bold]."
        print_json(result) if as_json else stdout().print(message, highlight=False, soft_wrap=True)
    elif as_json:
        print_json(frame.to_dicts())
    else:
        sys.stdout.write(frame.write_csv())


def add_user(
    model: ModelFile,
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with rows of new users, and their labels.")],
    user: Annotated[str | None, typer.Option("--user", help="The new user; by default all users of the file.")] = None,
    output: Annotated[
        Path | None, typer.Option(*OUTPUT, help="Model file to write; by default the given one is replaced.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Learn models for new users next to those of a model file; no other model changes.

    The table has the columns of the training table. Its user column may be absent if --user names the only user.

    **Examples**

    - `dada add-user visits.dada newcomers.csv`
    - `dada add-user visits.dada rows-of-eve.csv --user eve -o with-eve.dada`
    """
    from dada import modelfile, save_model
    from dada.data import read_table
    from dada.estimators.files import restored

    stored = modelfile.read(model)
    estimator, frame = only_model(restored(stored, model), model), read_table(file)
    added = _joined(estimator, frame, user, stored.note, file)
    save_model(estimator, output or model, note=stored.note)
    followed = {str(name): len(estimator.neighbours_of(name)) for name in added}
    result = {"added": followed, "users": estimator.n_users_, "model": str(output or model)}
    if as_json:
        print_json(result)
        return
    for name, n_neighbours in followed.items():
        stdout().print(f"{name} learns from {n_neighbours} users.", highlight=False, markup=False)
    message = f"{estimator.n_users_} users written to [bold]{output or model}[/bold]."
    stdout().print(message, highlight=False, soft_wrap=True)


def _joined(estimator: Model, frame: pl.DataFrame, user: str | None, note: dict[str, str], file: Path) -> list[Any]:
    """Add the user, or all users of a frame, to a model; the ids that were added."""
    from dada.data.population import as_values, did_you_mean, shorten

    named = estimator.user_column_ if isinstance(estimator.user_column_, str) else "user"
    of_users, label = note.get("user_column", named), note.get("label_column", "label")
    features = estimator.input_columns_ or [name for name in frame.columns if name not in (of_users, label)]
    absent = [name for name in (*features, label) if name not in frame.columns]
    if absent or (user is None and of_users not in frame.columns):
        absent = absent or [of_users]
        raise ValueError(
            f"{file} has no column {shorten(absent)}{did_you_mean(absent, frame.columns)}; it has "
            f"{shorten(frame.columns, 20)}. --user names the user if no column does"
        )
    given = frame[of_users].cast(str).to_list() if of_users in frame.columns else [user] * frame.height
    owners = like_known(as_values(given, "users"), estimator.users_)
    wanted = owners[[name == user for name in given]] if user is not None else owners
    if not len(wanted):
        raise ValueError(f"{file} has no row of user {user!r}; it has rows of {shorten(sorted(set(given)))}")
    ids = sorted(set(wanted.tolist()))
    for one in ids:
        rows = frame.filter(owners == one)
        X = _with_users(estimator, rows.select(features), owners[owners == one])["X"]
        estimator.add_user(X, rows[label], one)
    return ids


def predictions(model: Path, file: Path, user: str | None, unknown_user: str) -> pl.DataFrame:
    """User, prediction and, for classes, score of every row."""
    import polars as pl

    from dada import DadaClassifier, modelfile
    from dada.data import read_table
    from dada.estimators.files import restored

    stored = modelfile.read(model)
    loaded, frame = restored(stored, model), read_table(file)
    if is_pipeline(loaded):
        estimator: Model = loaded[-1].set_params(unknown_user=unknown_user)
        rows, given = rows_through(loaded, frame, user, stored.note, file)
    else:
        estimator = loaded.set_params(unknown_user=unknown_user)
        rows, given = _rows(estimator, frame, user, stored.note, file)
    if not isinstance(estimator, DadaClassifier):
        return pl.DataFrame({given.name: given, "label": estimator.predict(**rows)})
    each = estimator.predict_proba(**rows)
    scores = each[:, 1] if each.shape[1] == 2 else each.max(axis=1)
    # Of two equally probable classes, the first is predicted.
    return pl.DataFrame({given.name: given, "label": estimator.classes_[each.argmax(axis=1)], "score": scores})


def _rows(
    estimator: Model, frame: pl.DataFrame, user: str | None, note: dict[str, str], file: Path
) -> tuple[dict[str, Any], pl.Series]:
    """X and users as the estimator takes them, from the columns of a file, and the users to report."""
    from dada.data.population import as_values, did_you_mean, shorten

    named = estimator.user_column_ if isinstance(estimator.user_column_, str) else "user"
    user = user or note.get("user_column", named)
    needed = estimator.input_columns_
    features = [name for name in frame.columns if name != user] if needed is None else needed
    absent = [name for name in (user, *features) if name not in frame.columns]
    if absent:
        raise ValueError(
            f"{file} has no column {shorten(absent)}{did_you_mean(absent, frame.columns)}; it has "
            f"{shorten(frame.columns, 20)}. Name the column of users with --user"
        )
    owners = like_known(as_values(frame[user], "users"), estimator.users_)
    return _with_users(estimator, frame.select(features), owners), frame[user]


def _with_users(estimator: Model, features: pl.DataFrame, owners: np.ndarray) -> dict[str, Any]:
    """X and users as the estimator takes them: users apart, or in a column of X."""
    import numpy as np
    import polars as pl

    # A model fitted to an array knows its features by position only.
    by_position = estimator.input_columns_ is None
    X: Any = features.to_numpy() if by_position else features
    if estimator.user_column is None:
        return {"X": X, "users": owners}
    if not by_position:
        return {"X": X.with_columns(pl.Series(estimator.user_column_, owners))}
    return {"X": np.insert(X.astype(object), estimator.user_column % estimator.n_features_in_, owners, axis=1)}


def like_known(users: np.ndarray, known: np.ndarray) -> np.ndarray:
    """User ids as numbers or text, whichever the known ones are: a file may write 7 where another writes "7".

    >>> import numpy as np
    >>> like_known(np.array([7, 12]), np.array(["7", "x"])), like_known(np.array(["7"]), np.array([7, 8]))
    (array(['7', '12'], dtype='<U21'), array([7]))
    """
    import numpy as np

    if known.dtype.kind == "U" and users.dtype.kind in "iuf":
        is_whole = users.dtype.kind == "f" and bool((users == np.round(users)).all())
        return (users.astype(np.int64) if is_whole else users).astype(str)
    if known.dtype.kind in "iuf" and users.dtype.kind == "U":
        try:
            numbers = users.astype(np.float64)
        except ValueError:
            return users
        is_whole = known.dtype.kind in "iu" and bool((numbers == np.round(numbers)).all())
        return numbers.astype(np.int64) if is_whole else numbers
    return users


def write_table(frame: pl.DataFrame, output: Path) -> None:
    """Write a CSV or Parquet file by its suffix, atomically."""
    if output.suffix not in (".csv", ".parquet"):
        raise ValueError(f"output must end in .csv or .parquet, got {str(output)!r}")
    with atomic.replacing(output) as file:
        frame.write_csv(file) if output.suffix == ".csv" else frame.write_parquet(file)


def inspect(
    model: ModelFile,
    user: Annotated[str | None, typer.Option("--user", help="Show this user only.")] = None,
    output: Annotated[
        Path | None, typer.Option(*OUTPUT, help="Write the graph: .png or .svg (drawn), or .graphml.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of neighbours and base predictors to list.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show who learns from whom, what models are made of, which columns they use, and with which effect.

    Of boosted trees the one with the largest effect is drawn. In the picture of a model whose accuracy is not in its
    file (several classes, numbers) colours are those of users' predictions.

    **Examples**

    - `dada inspect visits.dada`
    - `dada inspect visits.dada --user ann`
    - `dada inspect visits.dada -o graph.png`
    """
    from dada import load_model

    estimator, about = inspected(load_model(model))
    result = about | (_everybody(estimator, top) if user is None else _one_user(estimator, user, top))
    if output is not None:
        write_graph(estimator, output)
        result["output"] = str(output)
    if as_json:
        print_json(result)
        return
    if "pipeline" in result:
        write(f"{steps_in_words(result['pipeline'])}\n")
    _show_everybody(result) if user is None else _show_user(result)
    if output is not None:
        stdout().print(f"\nGraph written to [bold]{output}[/bold].", highlight=False, soft_wrap=True)


def _everybody(model: Model, top: int) -> dict[str, Any]:
    import numpy as np

    graph = model.graph_
    counts, degree = graph.neighbour_counts, graph.degree
    followers = np.bincount(graph.indices, minlength=model.n_users_)
    # Each user of a directed graph has chosen its neighbours: what differs is who was chosen.
    order = np.argsort(-(followers if graph.directed else degree), kind="stable")[:top]
    about = {
        "graph": str(model.settings_.get("graph")),
        "who_learns": who_learns(model),
        "users": model.n_users_,
        "edges": graph.n_edges,
        "directed": graph.directed,
        "neighbours": round(graph.mean_neighbours, 6),
        "train_accuracy": _accuracy(model),
        "bits": round(model.bits_),
        "most_connected": [
            {
                "user": model.users_[k].item(),
                "neighbours": int(counts[k]),
                "followers": int(followers[k]),
                "degree": float(degree[k]),
            }
            for k in order.tolist()
        ],
        **explained(model, None, top),
    }
    encoder = model.encoder_
    return about if encoder is None else about | {"encoded": encoder.features_of, "left_out": encoder.left_out}


def _one_user(model: Model, user: str, top: int) -> dict[str, Any]:
    k = position_of(model.users_, user)
    neighbours = model.neighbours_of(model.users_[k].item())
    return {
        "user": model.users_[k].item(),
        "graph": str(model.settings_.get("graph")),
        "confidence": float(model.confidence_[k]),
        "degree": float(model.graph_.degree[k]),
        "train_accuracy": _accuracy(model, k),
        "neighbours": [{"user": n.user, "weight": n.weight, "share": n.share} for n in neighbours[:top]],
        "n_neighbours": len(neighbours),
        "followers": len(model.followers_of(model.users_[k].item())),
        **explained(model, k, top),
        "predictors": strongest_predictors(model, k, top),
    }


def _accuracy(model: Model, k: int | None = None) -> float | None:
    """Accuracy of one user or mean of all; None for numbers and several classes."""
    import numpy as np

    values = model.trace_[-1].train_accuracy
    if k is None or np.isnan(values).all():
        return mean_of_users(values)
    return float(values[k])


def position_of(users: Any, text: str) -> int:
    """Position of a user, as typed on the command line, among ids of any type.

    >>> import numpy as np
    >>> position_of(np.array([3, 10]), "10")
    1
    """
    import numpy as np

    found = np.flatnonzero((users.astype(str) == text) | (users == like_known(np.array([text]), users)))
    if found.size == 0:
        from dada.data.population import did_you_mean, shorten

        hint = did_you_mean([text], users.astype(str).tolist())
        raise ValueError(f"the model has no user {text!r}{hint}; it has {users.size}: {shorten(users)}")
    return int(found[0])


def write_graph(model: Model, output: Path) -> None:
    """Write the graph as a picture or as GraphML, by the suffix of the file."""
    if output.suffix == ".graphml":
        model.graph_.write_graphml(output, model.users_)
    elif output.suffix in (".png", ".svg"):
        from dada.plot.panels import graph_picture, model_panel

        graph_picture([model_panel(model, kinds_of(model))]).savefig(output, dpi=150)
    else:
        raise ValueError(f"output must end in .png, .svg or .graphml, got {str(output)!r}")


def _show_everybody(result: dict[str, Any]) -> None:
    rows = [
        ["users", str(result["users"])],
        ["edges", str(result["edges"])],
        ["neighbours per user", number(result["neighbours"])],
    ]
    if result["graph"] == "everyone":
        # Messages go to a few random users.
        rows = rows[:1]
    if result["train_accuracy"] is not None:
        rows.append(["accuracy on training rows", percent(result["train_accuracy"])])
    if "encoded" in result:
        rows.append(["columns", f"{len(result['encoded'])}, as {sum(result['encoded'].values())} features"])
    print_table(("", ""), rows)
    write(f"\n{result['who_learns']}.")
    if result["graph"] not in ("everyone", "none"):
        stdout().print()
        connected = result["most_connected"]
        if result["directed"]:
            cells = [[str(row["user"]), str(row["followers"]), str(row["neighbours"])] for row in connected]
            print_table(("most followed", "followers", "neighbours"), cells)
        else:
            cells = [[str(row["user"]), str(row["neighbours"]), short(row["degree"])] for row in connected]
            print_table(("most connected", "neighbours", "degree"), cells)
    show_explanation(result)


def _show_user(result: dict[str, Any]) -> None:
    accuracy, is_alike = result["train_accuracy"], result["graph"] == "everyone"
    facts = [f"confidence {result['confidence']:.2f}"]
    if accuracy is not None:
        facts.append(f"{percent(accuracy)} on its training rows")
    if is_alike:
        facts.append("learns from everyone alike")
    else:
        facts += [f"{result['n_neighbours']} neighbours", f"{result['followers']} followers"]
    write(f"User {result['user']}: {', '.join(facts)}")
    if result["neighbours"] and not is_alike:
        stdout().print()
        neighbours = [[str(n["user"]), short(n["weight"]), percent(n["share"])] for n in result["neighbours"]]
        print_table(("learns from", "weight", "share"), neighbours)
    show_explanation(result)
    stdout().print()
    print_table(
        ("base predictors", "weight"), [[r["predictor"], short(r["weight"], sign="+")] for r in result["predictors"]]
    )
