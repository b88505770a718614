"""`dada inspect`: the content of a model file, for all users or for one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dada.cli.console import AsJson, mean_of_users, number, percent, print_json, print_table, stdout
from dada.cli.predict import ModelFile, like_known

if TYPE_CHECKING:
    from dada.cli.predict import Model

BAR_WIDTH = 24


def inspect(
    model: ModelFile,
    user: Annotated[str | None, typer.Option("--user", help="Show this user only.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the graph: .png or .svg (drawn), or .graphml.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of neighbours and base predictors to list.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show who learns from whom, which columns the models use, and with which effect.

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
        **_explained(model, None, top),
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
        "followers": len(model.followers_of(model.users_[k].item())),
        **_explained(model, k, top),
        "predictors": _predictors(model, model.models_[k].astype(float), top),
    }


def _explained(model: Model, k: int | None, top: int) -> dict[str, Any]:
    """Shares of the columns in what models use, and the strongest effects of features; empty for waves."""
    import numpy as np

    if not hasattr(model, "feature_importances_"):
        return {"importances": [], "effects": []}
    user = None if k is None else model.users_[k].item()
    if user is None:
        names = getattr(model, "feature_names_in_", [f"x{d}" for d in range(model.n_features_in_)])
        shares = dict(zip(map(str, names), model.feature_importances_.tolist(), strict=True))
    else:
        shares = model.importances_of(user)
    order = sorted(shares, key=lambda name: -shares[name])[:top]
    effects = [each for each in model.feature_effects(user) if each.effect != 0][:top]
    as_json = [each._asdict() | {"label": np.asarray(each.label).item()} for each in effects]
    return {"importances": [{"column": n, "share": shares[n]} for n in order if shares[n] > 0], "effects": as_json}


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
    if output.suffix == ".graphml":
        model.graph_.write_graphml(output, model.users_)
    elif output.suffix in (".png", ".svg"):
        from dada.plot.panels import graph_picture, model_panel

        graph_picture([model_panel(model)]).savefig(output, dpi=150)
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
    _show_explanation(result)


def _show_user(result: dict[str, Any]) -> None:
    accuracy = result["train_accuracy"]
    of_rows = "" if accuracy is None else f"{percent(accuracy)} on its training rows, "
    stdout().print(
        f"User [bold]{result['user']}[/bold]: confidence {result['confidence']:.2f}, {of_rows}"
        f"{result['n_neighbours']} neighbours, {result['followers']} followers\n",
        highlight=False,
    )
    neighbours = [[str(n["user"]), f"{n['weight']:.3g}", percent(n["share"])] for n in result["neighbours"]]
    print_table(("learns from", "weight", "share"), neighbours)
    _show_explanation(result)
    stdout().print()
    print_table(("base predictors", "weight"), [[r["predictor"], f"{r['weight']:+.3g}"] for r in result["predictors"]])


def _show_explanation(result: dict[str, Any]) -> None:
    """Bars of the columns' shares, the strongest effect in words, and a table of effects."""
    importances, effects = result["importances"], result["effects"]
    if not importances:
        return
    longest = importances[0]["share"]
    bars = [[row["column"], bar(row["share"] / longest), percent(row["share"])] for row in importances]
    stdout().print()
    print_table(("what the model uses" if "user" in result else "what models use", "", "share"), bars, text_columns=2)
    if not effects:
        return
    of_one = "user" in result
    stdout().print(f"\n{in_words(effects[0], of_one=of_one)}\n", highlight=False, markup=False, soft_wrap=True)
    cells = {
        "feature": [row["feature"] for row in effects],
        "label": [str(row["label"]) for row in effects],
        "from": [f"{row['low']:.3g}" for row in effects],
        "to": [f"{row['high']:.3g}" for row in effects],
        "effect": [f"{row['effect']:+.3g}" for row in effects],
        "users agreeing": [percent(row["agreement"]) for row in effects],
    }
    n_text = 2
    if len(set(cells["label"])) == 1:
        del cells["label"]
        n_text = 1
    if of_one:
        del cells["users agreeing"]
    print_table(list(cells), list(zip(*cells.values(), strict=True)), text_columns=n_text)


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of block characters.

    >>> bar(0.5, width=8)
    '████'
    """
    return "█" * max(1, round(share * width))


def in_words(effect: dict[str, Any], *, of_one: bool = False) -> str:
    """The effect of a feature as a sentence.

    >>> in_words({"feature": "age", "label": "yes", "low": 20.0, "high": 60.0, "effect": 1.234, "agreement": 0.9})
    "When age rises from 20 to 60, the score of 'yes' rises by 1.23 on average; 90.0% of users agree in sign."
    """
    target = "the prediction" if effect["label"] is None else f"the score of {effect['label']!r}"
    change = f"{'rises' if effect['effect'] > 0 else 'falls'} by {abs(effect['effect']):.3g}"
    is_level = (effect["low"], effect["high"]) == (0, 1)
    when = f"With {effect['feature']}" if is_level else (
        f"When {effect['feature']} rises from {effect['low']:.3g} to {effect['high']:.3g}"
    )  # fmt: skip
    end = "." if of_one else f" on average; {percent(effect['agreement'])} of users agree in sign."
    return f"{when}, {target} {change}{end}"
