"""`dada inspect`: the content of a model file, for all users or for one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dada.cli.console import AsJson, mean_of_users, number, percent, print_json, print_table, stdout
from dada.cli.predict import ModelFile, like_known

if TYPE_CHECKING:
    from dada.cli.predict import Model


def inspect(
    model: ModelFile,
    user: Annotated[str | None, typer.Option("--user", help="Show this user only.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the graph: .png or .svg (drawn), or .graphml.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of neighbours and base predictors to list.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show who learns from whom, and what the models use.

    **Examples**

    - `dada inspect visits.dada`
    - `dada inspect visits.dada --user ann`
    - `dada inspect visits.dada -o graph.png`
    """
    from dada import load_model

    estimator = load_model(model)
    result = _everybody(estimator, top) if user is None else _one_user(estimator, user, top)
    if output is not None:
        write_graph(estimator, output)
        result["output"] = str(output)
    if as_json:
        print_json(result)
        return
    _show_everybody(result) if user is None else _show_user(result)
    if output is not None:
        stdout().print(f"\nGraph written to [bold]{output}[/bold].", highlight=False, soft_wrap=True)


def _everybody(model: Model, top: int) -> dict[str, Any]:
    import numpy as np

    counts, degree = model.graph_.neighbour_counts, model.graph_.degree
    order = np.argsort(-degree, kind="stable")[:top]
    about = {
        "users": model.n_users_,
        "edges": model.graph_.n_edges,
        "neighbours": round(model.graph_.mean_neighbours, 6),
        "train_accuracy": _accuracy(model),
        "bits": round(model.bits_),
        "most_connected": [
            {"user": model.users_[k].item(), "neighbours": int(counts[k]), "degree": float(degree[k])} for k in order
        ],
        "predictors": _predictors(model, np.abs(model.models_).mean(axis=0), top),
    }
    encoder = model.encoder_
    return about if encoder is None else about | {"encoded": encoder.features_of, "left_out": encoder.left_out}


def _one_user(model: Model, user: str, top: int) -> dict[str, Any]:
    k = position_of(model.users_, user)
    neighbours = model.neighbours_of(model.users_[k].item())
    return {
        "user": model.users_[k].item(),
        "confidence": float(model.confidence_[k]),
        "degree": float(model.graph_.degree[k]),
        "train_accuracy": _accuracy(model, k),
        "neighbours": [{"user": n.user, "weight": n.weight, "share": n.share} for n in neighbours[:top]],
        "n_neighbours": len(neighbours),
        "predictors": _predictors(model, model.models_[k].astype(float), top),
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
        known = ", ".join(map(repr, users[:5].tolist()))
        raise ValueError(f"the model has no user {text!r}; it has {users.size}, such as {known}")
    return int(found[0])


def _predictors(model: Model, weights: Any, top: int) -> list[dict[str, Any]]:
    import numpy as np

    names = model.used_features_
    order = np.argsort(-np.abs(weights), kind="stable")[:top]
    return [
        {"predictor": _described(model, int(j), names), "weight": float(weights[j])} for j in order if weights[j] != 0
    ]


def _described(model: Model, j: int, names: Any) -> str:
    """The base predictor of a weight and, with several classes, its class."""
    block, base = divmod(j, model.predictors_.n)
    text = model.predictors_.describe(base, names)
    return text if len(model.models_[0]) == model.predictors_.n else f"{model.classes_[block]}: {text}"


def write_graph(model: Model, output: Path) -> None:
    """Write the graph as a picture or as GraphML, by the suffix of the file."""
    import numpy as np

    if output.suffix == ".graphml":
        model.graph_.write_graphml(output, model.users_)
    elif output.suffix in (".png", ".svg"):
        from dada.plot.panels import GraphPanel, graph_picture

        accuracy = model.trace_[-1].train_accuracy
        errors = 1 - accuracy if len(accuracy) else np.zeros(model.n_users_)
        labels = [str(user) for user in model.users_.tolist()]
        panel = GraphPanel("Who learns from whom", model.graph_, model.confidence_, errors, labels)
        graph_picture([panel]).savefig(output, dpi=150)
    else:
        raise ValueError(f"output must end in .png, .svg or .graphml, got {str(output)!r}")


def _show_everybody(result: dict[str, Any]) -> None:
    rows = [
        ["users", str(result["users"])],
        ["edges", str(result["edges"])],
        ["neighbours per user", number(result["neighbours"])],
    ]
    if result["train_accuracy"] is not None:
        rows.append(["accuracy on training rows", percent(result["train_accuracy"])])
    if "encoded" in result:
        rows.append(["columns", f"{len(result['encoded'])}, as {sum(result['encoded'].values())} features"])
    print_table(("", ""), rows)
    connected = [[str(row["user"]), str(row["neighbours"]), f"{row['degree']:.3g}"] for row in result["most_connected"]]
    stdout().print()
    print_table(("most connected", "neighbours", "degree"), connected)
    stdout().print()
    _show_predictors(result, "most used base predictors", "mean weight")


def _show_user(result: dict[str, Any]) -> None:
    accuracy = result["train_accuracy"]
    of_rows = "" if accuracy is None else f"{percent(accuracy)} on its training rows, "
    stdout().print(
        f"User [bold]{result['user']}[/bold]: confidence {result['confidence']:.2f}, {of_rows}"
        f"{result['n_neighbours']} neighbours\n",
        highlight=False,
    )
    neighbours = [[str(n["user"]), f"{n['weight']:.3g}", percent(n["share"])] for n in result["neighbours"]]
    print_table(("learns from", "weight", "share"), neighbours)
    stdout().print()
    _show_predictors(result, "base predictors", "weight")


def _show_predictors(result: dict[str, Any], title: str, heading: str) -> None:
    print_table((title, heading), [[row["predictor"], f"{row['weight']:+.3g}"] for row in result["predictors"]])
