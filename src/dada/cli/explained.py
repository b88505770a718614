"""A model in words: who learns from whom, what it is made of, which columns it uses, with which effect, and a tree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dada.cli.console import percent, print_table, short, stdout, write

if TYPE_CHECKING:
    from dada import DadaClassifier, DadaRegressor
    from dada.estimators.explanation import Node

    Model = DadaClassifier | DadaRegressor

BAR_WIDTH = 24
WHO_LEARNS = {
    "everyone": "Everyone learns from everyone alike",
    "evidence": "Users learn from those whose models do best on their rows",
    "evidence-symmetric": "Users learn from those whose models do best on their rows, in both directions",
    "learned": "Users learn from those with similar models",
    "none": "Users learn alone",
}
GIVEN_GRAPH = "Users learn along the given graph"
# One base predictor of a kind, and several.
PARTS = {
    "linear": ("linear function of a feature", "linear functions of a feature"),
    "stumps": ("threshold of a feature (stump)", "thresholds of features (stumps)"),
    "leaves": ("small tree with leaf values of each user's own", "small trees with leaf values of each user's own"),
    "trees": ("tree that a user grew", "trees that users grew"),
    "fourier": ("wave", "waves"),
}


def who_learns(model: Model) -> str:
    """Who learns from whom, as a clause."""
    return WHO_LEARNS.get(str(model.settings_.get("graph")), GIVEN_GRAPH)


def explained(model: Model, k: int | None, top: int) -> dict[str, Any]:
    """Parts of models, shares of columns, the strongest effects and tree; empty for predictors of many features."""
    import numpy as np

    from dada.estimators.explanation import parts, strongest_tree

    if not hasattr(model, "feature_importances_"):
        return {"parts": [], "importances": [], "effects": [], "tree": None}
    user = None if k is None else model.users_[k].item()
    models = model.models_ if k is None else model.models_[[k]]
    if user is None:
        names = getattr(model, "feature_names_in_", [f"x{d}" for d in range(model.n_features_in_)])
        shares = dict(zip(map(str, names), model.feature_importances_.tolist(), strict=True))
    else:
        shares = model.importances_of(user)
    order = sorted(shares, key=lambda name: -shares[name])[:top]
    effects = [each for each in model.feature_effects(user) if each.effect != 0][:top]
    tree = strongest_tree(model.predictors_, models.mean(axis=0, dtype=np.float64))
    return {
        # A constant is the same in all rows.
        "parts": [part._asdict() for part in parts(model.predictors_, models) if part.kind != "constant"],
        "importances": [{"column": n, "share": shares[n]} for n in order if shares[n] > 0],
        "effects": [each._asdict() | {"label": np.asarray(each.label).item()} for each in effects],
        "tree": None if tree is None else {"label": _label(model, tree.block), "root": _tests(model, tree.root)},
    }


def _label(model: Model, block: int) -> Any:
    """The class whose score a block of decision values is; None for numbers."""
    classes = getattr(model, "classes_", None)
    if classes is None:
        return None
    return classes[1 if len(classes) == 2 else block].item()


def _tests(model: Model, node: Node | float) -> Any:
    """A tree for JSON: questions with what follows, or the value of a leaf in units of the target."""
    from dada.estimators.explanation import references

    if isinstance(node, float):
        return node * getattr(model, "target_scale_", 1.0)
    names, ends = model.used_features_, references(model.predictors_).ends[:, node.feature]
    name = f"x{node.feature}" if names is None else names[node.feature]
    # Of a level, 1 is its presence.
    question = name if ends.tolist() == [0, 1] else f"{name} > {node.threshold:.4g}"
    return {"question": question, "yes": _tests(model, node.above), "no": _tests(model, node.below)}


def kinds_of(model: Model) -> tuple[Any, list[str]] | None:
    """The kind of each user for pictures: its commonest class on typical rows, or a third of the mean predictions.

    None for predictors of many features. The second result names the kinds.
    """
    import numpy as np

    from dada.estimators.explanation import typical_values

    if not hasattr(model, "feature_importances_"):
        return None
    values = typical_values(model.predictors_, model.models_)
    classes = getattr(model, "classes_", None)
    if classes is None:
        means = model.target_mean_ + model.target_scale_ * values[0].mean(axis=0)
        ends = np.quantile(means, [1 / 3, 2 / 3])
        low, high = between(*ends.tolist())
        names = [f"predictions up to {low}", f"up to {high}", "above"]
        return np.searchsorted(ends, means), [
            f"{name}, on typical rows" if i == 0 else name for i, name in enumerate(names)
        ]
    best = (values[0] > 0).astype(np.int64) if len(classes) == 2 else values.argmax(axis=0)
    counts = np.stack([(best == c).sum(axis=0) for c in range(len(classes))])
    return counts.argmax(axis=0), [f"mostly {label}" for label in classes.tolist()]


def strongest_predictors(model: Model, k: int, top: int) -> list[dict[str, Any]]:
    """The base predictors of a user with the largest weights; those with equal words, as leaves may be, are one."""
    import numpy as np

    names, weights = model.used_features_, model.models_[k].astype(float)
    found: dict[str, float] = {}
    for j in np.flatnonzero(weights).tolist():
        words = _described(model, j, names)
        found[words] = found.get(words, 0.0) + weights[j]
    order = sorted(found, key=lambda words: -abs(found[words]))[:top]
    return [{"predictor": words, "weight": found[words]} for words in order]


def _described(model: Model, j: int, names: Any) -> str:
    """The base predictor of a weight and, with several classes, its class."""
    block, base = divmod(j, model.predictors_.n)
    text = model.predictors_.describe(base, names)
    return text if len(model.models_[0]) == model.predictors_.n else f"{model.classes_[block]}: {text}"


def show_explanation(result: dict[str, Any]) -> None:
    """What models are made of, bars of the columns' shares, the strongest effect in words, all effects, a tree."""
    importances, effects = result["importances"], result["effects"]
    if not importances:
        return
    of_one = "user" in result
    stdout().print()
    if len(result["parts"]) > 1:
        write(parts_in_words(result["parts"]) + "\n")
    longest = importances[0]["share"]
    bars = [[row["column"], bar(row["share"] / longest), percent(row["share"])] for row in importances]
    print_table(("what the model uses" if of_one else "what models use", "", "share"), bars, text_columns=2)
    if not effects:
        return
    write(f"\n{in_words(effects[0], of_one=of_one)}\n")
    ends = [between(row["low"], row["high"]) for row in effects]
    cells = {
        "feature": [row["feature"] for row in effects],
        "label": [str(row["label"]) for row in effects],
        "from": [low for low, _ in ends],
        "to": [high for _, high in ends],
        "effect": [short(row["effect"], sign="+") for row in effects],
        "users agreeing": [percent(row["agreement"]) for row in effects],
    }
    n_text = 2
    if len(set(cells["label"])) == 1:
        del cells["label"]
        n_text = 1
    if of_one:
        del cells["users agreeing"]
    print_table(list(cells), list(zip(*cells.values(), strict=True)), text_columns=n_text)
    if result["tree"] is not None:
        (n_trees,) = (part["number"] for part in result["parts"] if part["kind"] == "leaves")
        whose = "" if of_one else " (values: mean over users)"
        write(f"\nOf {n_trees} trees, the one that moves {_target(result['tree']['label'])} most{whose}:\n")
        write("\n".join(drawn_tree(result["tree"]["root"])))


def parts_in_words(parts: list[dict[str, Any]]) -> str:
    """What models are made of, as a sentence.

    >>> parts_in_words([{"kind": "trees", "number": 50, "share": 0.75}, {"kind": "linear", "number": 1, "share": 0.25}])
    'Of what models use, 75.0% comes from 50 trees that users grew and 25.0% from 1 linear function of a feature.'
    """
    sources = [
        f"from {part['number']} {PARTS.get(part['kind'], (part['kind'],) * 2)[part['number'] != 1]}" for part in parts
    ]
    first, *rest = (f"{percent(part['share'])} {source}" for part, source in zip(parts, sources, strict=True))
    return f"Of what models use, {first.replace('%', '% comes', 1)}{''.join(f' and {other}' for other in rest)}."


def drawn_tree(node: Any, indent: str = "") -> list[str]:
    r"""Lines that draw a tree.

    >>> print("\n".join(drawn_tree({"question": "age > 30", "yes": 0.25, "no": -0.5})))
    age > 30?
    ├─ yes: +0.25
    └─ no:  -0.5
    """
    if isinstance(node, float):
        return [short(node, sign="+")]
    lines = [f"{node['question']}?"]
    for mark, rail, name, words in (("├─", "│ ", "yes", "yes: "), ("└─", "  ", "no", "no:  ")):
        first, *rest = drawn_tree(node[name], f"{indent}{rail} ")
        lines += [f"{indent}{mark} {words}{first}", *rest]
    return lines


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of block characters.

    >>> bar(0.5, width=8)
    '████'
    """
    return "█" * max(1, round(share * width))


def between(low: float, high: float) -> tuple[str, str]:
    """The ends of a range, with as many digits as tell them apart.

    >>> between(1971.68, 1984.32), between(0.0, 1.0), between(-630.4, 4121.0)
    (('1971.7', '1984.3'), ('0', '1'), ('-630', '4120'))
    """
    digits = 2 if high <= low else 2 - math.floor(math.log10(high - low))
    # Minus zero is zero.
    lower, upper = (f"{round(end, digits) + 0.0:.10g}" for end in (low, high))
    return lower, upper


def in_words(effect: dict[str, Any], *, of_one: bool = False) -> str:
    """The effect of a feature as a sentence.

    >>> in_words({"feature": "age", "label": "yes", "low": 20.0, "high": 60.0, "effect": 1.234, "agreement": 0.9})
    "When age rises from 20 to 60, the score of 'yes' rises by 1.23 on average; 90.0% of users agree in sign."
    """
    change = f"{'rises' if effect['effect'] > 0 else 'falls'} by {short(abs(effect['effect']))}"
    is_level = (effect["low"], effect["high"]) == (0, 1)
    low, high = between(effect["low"], effect["high"])
    when = f"With {effect['feature']}" if is_level else f"When {effect['feature']} rises from {low} to {high}"
    end = "." if of_one else f" on average; {percent(effect['agreement'])} of users agree in sign."
    return f"{when}, {_target(effect['label'])} {change}{end}"


def _target(label: Any) -> str:
    return "the prediction" if label is None else f"the score of {label!r}"
