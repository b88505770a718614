"""The published numbers, as data. Accuracies are percentages.

Source: V. Zantedeschi, A. Bellet, M. Tommasi, "Fully Decentralized Joint Learning of Personalized Models and
Collaboration Graphs", AISTATS 2020; Table 1, with the standard deviations of the supplement, and Table 2.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = (
    "V. Zantedeschi, A. Bellet, M. Tommasi: Fully Decentralized Joint Learning of Personalized Models and "
    "Collaboration Graphs. AISTATS 2020."
)


class Published(NamedTuple):
    """A published accuracy; `std` is over three runs, None for methods without chance."""

    mean: float
    std: float | None = None


TABLE1: dict[str, dict[str, Published]] = {
    "global-lin": {
        "harws": Published(93.64),
        "vehicle": Published(87.11),
        "computer": Published(62.18),
        "school": Published(57.06),
    },
    "local-lin": {
        "harws": Published(92.69),
        "vehicle": Published(90.38),
        "computer": Published(60.68),
        "school": Published(70.43),
    },
    "perso-lin-learned": {
        "harws": Published(96.87, 0.97),
        "vehicle": Published(91.45, 0.16),
        "computer": Published(69.10, 0.05),
        "school": Published(71.78, 0.42),
    },
    "global-boost": {
        "harws": Published(94.34),
        "vehicle": Published(88.02),
        "computer": Published(69.16),
        "school": Published(69.96),
    },
    "local-boost": {
        "harws": Published(93.16),
        "vehicle": Published(90.59),
        "computer": Published(66.61),
        "school": Published(70.69),
    },
    "dada-learned": {
        "harws": Published(95.57, 0.21),
        "vehicle": Published(91.04, 0.70),
        "computer": Published(73.55, 0.28),
        "school": Published(72.47, 0.81),
    },
}

# Table 2: accuracy when at most D * Z * factor bits may be sent; None where the paper prints a dash.
BUDGET_FACTORS = (160, 500, 1000)
TABLE2: dict[int, dict[str, dict[str, float | None]]] = {
    160: {
        "perso-lin-learned": {"harws": None, "vehicle": None, "computer": None, "school": None},
        "dada-learned": {"harws": 95.70, "vehicle": 75.11, "computer": 52.03, "school": 56.83},
    },
    500: {
        "perso-lin-learned": {"harws": 81.06, "vehicle": 89.82, "computer": None, "school": None},
        "dada-learned": {"harws": 95.70, "vehicle": 89.57, "computer": 62.22, "school": 71.90},
    },
    1000: {
        "perso-lin-learned": {"harws": 87.55, "vehicle": 90.52, "computer": 68.95, "school": 71.90},
        "dada-learned": {"harws": 95.70, "vehicle": 90.81, "computer": 68.83, "school": 72.22},
    },
}

# Supplement: neighbours per user on Moons100, and bits for learning the graph of Moons with kappa = 1.
MOONS100_LEARNED_NEIGHBOURS = 42.64
MOONS100_ORACLE_NEIGHBOURS = 60.86
KAPPA_ONE_BITS = 5e5
EVERY_WEIGHT_TO_EVERYONE_BITS = 1.6e7
