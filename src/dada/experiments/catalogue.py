"""Every table and figure that can be reproduced, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dada.experiments.beyond import beyond
from dada.experiments.communication import budget, table2
from dada.experiments.data import REAL
from dada.experiments.kappa import kappa_page
from dada.experiments.lab import Lab
from dada.experiments.moons100 import moons100_page
from dada.experiments.moons_pages import graph_page, moons_page, size_page
from dada.experiments.page import Page
from dada.experiments.table1 import table1


@dataclass(frozen=True)
class Reproduction:
    """A page that can be made.

    Attributes
    ----------
    name, title : str
        On the command line, and for people.
    source : str
        Where it stands in the paper.
    make : callable
        Makes the page with a lab, for the real datasets given.
    real : tuple of str
        The real datasets it shows, where they are present.
    needs_data : bool
        Whether it shows nothing without them.
    """

    name: str
    title: str
    source: str
    make: Callable[[Lab, Sequence[str]], Page]
    real: tuple[str, ...] = ()
    needs_data: bool = False


CATALOGUE = {
    entry.name: entry
    for entry in (
        Reproduction("table1", "Test accuracy on real data", "Table 1 and its standard deviations", table1, REAL, True),
        Reproduction("table2", "Test accuracy under communication budgets", "Table 2", table2, REAL, True),
        Reproduction("moons", "Accuracy and neighbours while learning, Moons", "Figure 1", moons_page),
        Reproduction("graph", "Oracle and learned graph, Moons", "Figure 2", graph_page),
        Reproduction("kappa", "Objective against wake-ups and bits, by kappa", "supplement", kappa_page),
        Reproduction("size", "Accuracy against local dataset size", "supplement", size_page, ("harws",)),
        Reproduction("budget", "Accuracy against bits sent", "supplement", budget, REAL, True),
        Reproduction("moons100", "Users without groups, and the effect of lambda", "supplement", moons100_page),
        Reproduction("beyond", "Better than the paper, and where not", "not in the paper", beyond, REAL),
    )
}
