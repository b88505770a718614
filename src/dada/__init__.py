"""Personalized models learned by users who never share their data, over a graph they learn together."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "BoostedTrees",
    "CollaborationGraph",
    "Constant",
    "DadaClassifier",
    "DadaClassifierCV",
    "DadaRegressor",
    "DadaRegressorCV",
    "DegreeFunction",
    "DegreeTarget",
    "FeatureSummary",
    "Linear",
    "LogDegree",
    "Loss",
    "ModelFileError",
    "PerUserKFold",
    "Population",
    "Pretrained",
    "Privacy",
    "RandomFourier",
    "Stumps",
    "Trees",
    "Union",
    "load_model",
    "moons",
    "moons100",
    "population_from_table",
    "save_model",
]

if TYPE_CHECKING:
    from dada.core.graph import CollaborationGraph
    from dada.core.graph_steps import DegreeFunction, DegreeTarget, LogDegree
    from dada.core.losses import Loss
    from dada.data import (
        BoostedTrees,
        Constant,
        FeatureSummary,
        Linear,
        Population,
        Pretrained,
        RandomFourier,
        Stumps,
        Trees,
        Union,
        moons,
        moons100,
        population_from_table,
    )
    from dada.estimators import (
        DadaClassifier,
        DadaClassifierCV,
        DadaRegressor,
        DadaRegressorCV,
        PerUserKFold,
        load_model,
        save_model,
    )
    from dada.modelfile import ModelFileError
    from dada.privacy.accounting import Privacy
else:
    # scikit-learn and Numba take seconds to import: a name is fetched when it is first used.
    _HOMES = {
        "dada.core.graph": ("CollaborationGraph",),
        "dada.core.losses": ("Loss",),
        "dada.core.graph_steps": ("DegreeFunction", "DegreeTarget", "LogDegree"),
        "dada.data": (
            "BoostedTrees",
            "Constant",
            "FeatureSummary",
            "Linear",
            "Population",
            "Pretrained",
            "RandomFourier",
            "Stumps",
            "Trees",
            "Union",
            "moons",
            "moons100",
            "population_from_table",
        ),
        "dada.estimators": (
            "DadaClassifier",
            "DadaClassifierCV",
            "DadaRegressor",
            "DadaRegressorCV",
            "PerUserKFold",
            "load_model",
            "save_model",
        ),
        "dada.modelfile": ("ModelFileError",),
        "dada.privacy.accounting": ("Privacy",),
    }

    def __getattr__(name: str) -> Any:
        for home, names in _HOMES.items():
            if name in names:
                value = getattr(import_module(home), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module 'dada' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
