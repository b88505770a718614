"""How accurate the methods are: along the run, and user by user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dada.core.compiled import Array
from dada.events import TracePoint
from dada.plot.theme import LIGHT, Theme, name_of, new_figure


def accuracy_picture(
    traces: Mapping[str, Sequence[TracePoint]],
    levels: Mapping[str, tuple[float, float]],
    by_user: Mapping[str, Array],
    theme: Theme = LIGHT,
) -> Figure:
    """Curves of train and test accuracy beside every user's test accuracy.

    Parameters
    ----------
    traces : mapping of method to trace
        Methods drawn as curves over the updates per user.
    levels : mapping of method to (train, test) accuracy
        Methods drawn as straight lines: those that do not collaborate, at convergence.
    by_user : mapping of method to array of shape (n_users,)
        Test accuracies, drawn in ascending order.
    theme : Theme
        Colours.

    Returns
    -------
    Figure

    Examples
    --------
    >>> figure = accuracy_picture({}, {"local-boost": (1.0, 0.8)}, {"local-boost": np.array([0.7, 0.9])})
    >>> [ax.get_title(loc="left") for ax in figure.axes]
    ['Accuracy along the run', 'Test accuracy of every user']
    """
    with theme.applied():
        figure, (curves, users) = new_figure(11.5, 4.6, columns=2, width_ratios=(1.35, 1))
        _draw_curves(curves, theme, traces, levels)
        draw_users(users, theme, by_user)
    return figure


def _draw_curves(
    ax: Axes,
    theme: Theme,
    traces: Mapping[str, Sequence[TracePoint]],
    levels: Mapping[str, tuple[float, float]],
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
    """Write each method's name where its line ends, moved up where two would overlap."""
    lowest = -np.inf
    for value, method in sorted(ends):
        height = max(value, lowest + room)
        lowest = height
        text = f"{name_of(method)}  {100 * round(value, 6):.1f}%"
        ax.annotate(
            text,
            (1.0, height),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            color=theme.colour_of(method),
            fontweight="bold",
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def draw_users(ax: Axes, theme: Theme, by_user: Mapping[str, Array]) -> None:
    """Draw every user's accuracy under each method, in ascending order."""
    for position, (method, accuracies) in enumerate(by_user.items()):
        known = np.sort(accuracies[np.isfinite(accuracies)])
        rank = (np.arange(known.size) + 0.5) / known.size
        ax.plot(rank, known, color=theme.colour_of(method, position), linewidth=2.2, label=name_of(method))
    ax.set(title="Test accuracy of every user", xlabel="users, from the worst served to the best", xlim=(0, 1))
    ax.set_ylim(None, 1.005)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.grid(axis="y")
