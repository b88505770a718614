"""Accuracy over a run and per user, drawn on given matplotlib axes or as a whole figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dada.core.compiled import Array
from dada.core.losses import Reliability
from dada.events import TracePoint
from dada.plot.theme import LIGHT, Theme, name_of, new_axes, new_figure

_ALONG = {"updates": "model updates", "bits": "bits sent"}
_VALUES = {"accuracy": "accuracy", "objective": "objective", "gap": "gap", "edges": "edges", "bits": "bits sent"}


def curves(
    traces: Sequence[TracePoint] | Mapping[str, Sequence[TracePoint]],
    ax: Axes | None = None,
    *,
    y: str = "accuracy",
    x: str = "updates",
    baselines: Mapping[str, float] | None = None,
    theme: Theme = LIGHT,
) -> Axes:
    """Draw one line per run, and a straight line for each method that does not collaborate.

    Parameters
    ----------
    traces : trace, or mapping of name to trace
        `trace_` of a classifier, or `trace` of a run.
    ax : matplotlib axes, optional
        Axes to draw on; by default those of a new figure.
    y : {"accuracy", "objective", "gap", "edges", "bits"}
        Quantity to draw. Accuracy is the mean over users on test data if there is any, else on training data, with a
        band down to the 10th percentile of users.
    x : {"updates", "bits"}
        Quantity of the horizontal axis.
    baselines : mapping of name to number, optional
        Levels of methods that do not collaborate.

    Returns
    -------
    The axes, with one curve per run.

    Examples
    --------
    >>> accuracy = np.array([[0.5, 0.6], [0.7, 0.9]], np.float32)
    >>> trace = [TracePoint(10 * t, 0, 1.0, 1.0, accuracy[t], accuracy[t], 0, 0.0, 0.0) for t in range(2)]
    >>> ax = curves({"dada-learned": trace}, baselines={"local-boost": 0.6})
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['Dada-Learned', 'Local-boost']
    """
    for what, value, known in (("x", x, _ALONG), ("y", y, _VALUES)):
        if value not in known:
            raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}")
    ax = new_axes(6.4, 4.0) if ax is None else ax
    named = traces if isinstance(traces, Mapping) else {"": traces}
    for position, (name, trace) in enumerate(named.items()):
        _draw_curve(ax, theme.colour_of(name or "dada-learned", position), name, trace, y, x)
    for position, (name, level) in enumerate((baselines or {}).items()):
        ax.axhline(level, color=theme.colour_of(name, position), linewidth=1.4, linestyle="--", label=name_of(name))
    if y == "accuracy":
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if y == "gap":
        ax.set_yscale("log")
    ax.set(xlabel=_ALONG[x], ylabel=_VALUES[y])
    ax.margins(x=0)
    ax.grid(axis="y", color=theme.grid)
    if len(named) > 1 or "" not in named or baselines:
        ax.legend(frameon=False)
    return ax


def users(accuracies: Array | Mapping[str, Array], ax: Axes | None = None, *, theme: Theme = LIGHT) -> Axes:
    """Draw each user's accuracy, in ascending order.

    Parameters
    ----------
    accuracies : array of shape (n_users,), or mapping of name to array
        Such as `trace_[-1].train_accuracy`; NaN for a user without samples.
    ax : matplotlib axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    The axes, with one line per method.

    Examples
    --------
    >>> users({"local-boost": np.array([0.9, np.nan, 0.5])}).lines[0].get_ydata().tolist()
    [0.5, 0.9]
    """
    ax = new_axes(5.0, 4.0) if ax is None else ax
    named = accuracies if isinstance(accuracies, Mapping) else {"": np.asarray(accuracies)}
    _draw_users(ax, theme, named)
    ax.set_title("")
    ax.set_ylabel("accuracy")
    if "" not in named:
        # Above the axes: curves may be anywhere inside.
        ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return ax


def reliability(
    found: Reliability | Mapping[str, Reliability], ax: Axes | None = None, *, theme: Theme = LIGHT
) -> Axes:
    """Draw how often predictions are right against the probability that the model gives them.

    Parameters
    ----------
    found : Reliability, or mapping of name to Reliability
        Such as `calibration_.before` and `calibration_.after` of a classifier. Points have areas by their numbers of
        rows; on the diagonal, probabilities are right.
    ax : matplotlib axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    The axes, with one line per name and the diagonal.

    Examples
    --------
    >>> right = Reliability.of(np.array([[0.2, 0.8], [0.2, 0.8], [0.1, 0.9]]), np.array([1, 1, 0]))
    >>> reliability({"before": right}).lines[1].get_ydata().tolist()
    [1.0, 0.0]
    """
    ax = new_axes(4.6, 4.6) if ax is None else ax
    named = found if isinstance(found, Mapping) else {"": found}
    ax.plot([0, 1], [0, 1], color=theme.faint, linewidth=1.0, linestyle="--")
    for position, (name, one) in enumerate(named.items()):
        used, colour = one.share > 0, theme.colour_of(name, position)
        label = f"{name}: off by {100 * one.error:.1f} points" if name else None
        ax.plot(one.confidence[used], one.accuracy[used], color=colour, linewidth=1.6, label=label)
        ax.scatter(one.confidence[used], one.accuracy[used], s=20 + 400 * one.share[used], color=colour, alpha=0.5)
    least = min(float(one.confidence[one.share > 0].min()) for one in named.values())
    lowest = min(least, *(float(one.accuracy[one.share > 0].min()) for one in named.values()))
    ax.set(xlabel="probability of the predicted class", ylabel="share of right predictions")
    ax.set(xlim=(least - 0.02, 1.0), ylim=(lowest - 0.05, 1.02))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.grid(color=theme.grid)
    if "" not in named:
        # Above the axes: curves may be anywhere inside.
        ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return ax


def _draw_curve(ax: Axes, colour: Any, name: str, trace: Sequence[TracePoint], y: str, x: str) -> None:
    along = [getattr(point, x) for point in trace]
    style: dict[str, Any] = {"color": colour, "linewidth": 2.0, "label": name_of(name)}
    if y != "accuracy":
        ax.plot(along, [getattr(point, y) for point in trace], **style)
        return
    known = [point.test_accuracy if point.test_accuracy.size else point.train_accuracy for point in trace]
    mean = [float(np.nanmean(values)) for values in known]
    ax.plot(along, mean, **style)
    ax.fill_between(along, [float(np.nanpercentile(values, 10)) for values in known], mean, color=colour, alpha=0.12)


def accuracy_picture(
    traces: Mapping[str, Sequence[TracePoint]],
    levels: Mapping[str, tuple[float, float]],
    by_user: Mapping[str, Array],
    theme: Theme = LIGHT,
) -> Figure:
    """Figure with curves of train and test accuracy next to each user's test accuracy.

    Parameters
    ----------
    traces : mapping of method to trace
        Methods drawn as curves over the updates per user.
    levels : mapping of method to (train, test) accuracy
        Methods drawn as straight lines: those that do not collaborate, at convergence.
    by_user : mapping of method to array of shape (n_users,)
        Test accuracies, drawn in ascending order.

    Examples
    --------
    >>> figure = accuracy_picture({}, {"local-boost": (1.0, 0.8)}, {"local-boost": np.array([0.7, 0.9])})
    >>> [ax.get_title(loc="left") for ax in figure.axes]
    ['Accuracy along the run', 'Test accuracy of every user']
    """
    with theme.applied():
        figure, (curves, users) = new_figure(11.5, 4.6, columns=2, width_ratios=(1.35, 1))
        _draw_curves(curves, theme, traces, levels)
        _draw_users(users, theme, by_user)
    return figure


def _draw_curves(
    ax: Axes, theme: Theme, traces: Mapping[str, Sequence[TracePoint]], levels: Mapping[str, tuple[float, float]]
) -> None:
    ends: list[tuple[float, str]] = []
    for position, (method, trace) in enumerate(traces.items()):
        colour = theme.colour_of(method, position)
        n_users = max(trace[0].test_accuracy.size, 1)
        updates = [point.updates / n_users for point in trace]
        test = [float(np.nanmean(point.test_accuracy)) for point in trace]
        train = [float(np.nanmean(point.train_accuracy)) for point in trace]
        ax.plot(updates, train, color=colour, linewidth=1.1, linestyle=(0, (1, 1.2)), alpha=0.9)
        ax.plot(updates, test, color=colour, linewidth=2.4, solid_capstyle="round")
        ends.append((test[-1], method))
    for position, (method, (train_level, test_level)) in enumerate(levels.items()):
        colour = theme.colour_of(method, position)
        ax.axhline(test_level, color=colour, linewidth=2.0)
        ax.axhline(train_level, color=colour, linewidth=1.0, linestyle=(0, (1, 1.2)), alpha=0.9)
        ends.append((test_level, method))
    _label_ends(ax, theme, ends)
    ax.plot([], [], color=theme.faint, linewidth=2.2, label="test")
    ax.plot([], [], color=theme.faint, linewidth=1.1, linestyle=(0, (1, 1.2)), label="train")
    ax.legend(loc="lower right", ncols=2, handlelength=1.8)
    ax.set(title="Accuracy along the run", xlabel="model updates per user")
    ax.margins(x=0)
    ax.set_ylim(min(0.6, *(value for value, _ in ends)) - 0.02, 1.005)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.grid(axis="y")


def _label_ends(ax: Axes, theme: Theme, ends: Sequence[tuple[float, str]], room: float = 0.024) -> None:
    """Label the end of each line with its method, moved up to avoid overlaps."""
    lowest = -np.inf
    for value, method in sorted(ends):
        height = max(value, lowest + room)
        lowest = height
        text = f"{name_of(method)}  {100 * round(value, 6):.1f}%"
        where: Any = {"xycoords": ("axes fraction", "data"), "xytext": (6, 0), "textcoords": "offset points"}
        style: Any = {"color": theme.colour_of(method), "fontweight": "bold", "fontsize": 9, "va": "center"}
        ax.annotate(text, (1.0, height), **where, **style, annotation_clip=False)


def _draw_users(ax: Axes, theme: Theme, by_user: Mapping[str, Array]) -> None:
    """Draw each user's accuracy under each method, in ascending order."""
    for position, (method, accuracies) in enumerate(by_user.items()):
        known = np.sort(accuracies[np.isfinite(accuracies)])
        rank = (np.arange(known.size) + 0.5) / known.size
        ax.plot(rank, known, color=theme.colour_of(method, position), linewidth=2.2, label=name_of(method))
    ax.set(title="Test accuracy of every user", xlabel="users, from the worst served to the best", xlim=(0, 1))
    ax.set_ylim(None, 1.005)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.grid(axis="y")
