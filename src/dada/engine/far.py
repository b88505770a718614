"""A problem whose rows no single process has: shards read their own and answer what depends on them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from dada.core.compiled import Array
from dada.core.graph import CollaborationGraph
from dada.core.problem import Problem
from dada.engine.sharded import Sharded, renumbered


@dataclass(frozen=True, eq=False)
class FarProblem(Problem):
    """A problem over the rows that the shards of a crew read. Here are only the number of rows of each user.

    Make one with `of`; give `run` the same crew. Models and graph stay with the process that runs it.
    """

    crew: Sharded | None = None
    name: str = ""

    @classmethod
    def of(cls, crew: Sharded, sizes: Array, n_predictors: int, *, name: str = "", **settings: Any) -> Self:
        """The problem of users with these numbers of rows, whose margins `crew.read` gives as -1, 0 and 1 or floats.

        `name` tells these rows from others when a checkpoint is taken up; other settings are those of `Problem`.
        """
        row_start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        offset = np.zeros(row_start[-1], np.float32)
        A = np.empty((0, n_predictors), np.int8)
        problem = cls(A, row_start, offset=offset, crew=crew, name=name, **settings)
        crew.hold(A, row_start, problem.confidence, offset, problem.emphasis)
        return problem

    def _check_rows(self) -> None:
        if self.crew is None or self.crew.read is None:
            raise ValueError("a FarProblem needs a crew whose shards read their rows: Sharded(n, hands, read)")
        if self.row_start.size < 2 or (np.diff(self.row_start) < 1).any() or self.n_predictors < 1:
            raise ValueError("every user must have at least one sample, and there must be base predictors")

    @property
    def rows_name(self) -> str:
        """What tells these rows from others."""
        return self.name

    def margins(self, alpha: Array) -> Array:
        """Margins of all users' rows under given models."""
        return np.concatenate(self._ask("margins", [(alpha[first:last],) for first, last in self._shards()]))

    def model_gaps(self, alpha: Array, graph: CollaborationGraph) -> Array:
        """Frank-Wolfe gap of every user's block, divided by d_k."""
        settings, questions = self.settings(), []
        for first, last in self._shards():
            cells = slice(graph.indptr[first], graph.indptr[last])
            ids, others = renumbered(graph.indices[cells], first, last)
            models = np.concatenate([alpha[first:last], alpha[others]])
            indptr = graph.indptr[first : last + 1] - graph.indptr[first]
            questions.append((settings, models, indptr, ids, graph.weights[cells]))
        return np.concatenate(self._ask("gaps", questions))

    def model_gradient(self, alpha: Array, graph: CollaborationGraph) -> Array:
        """Refused: as large as all models, and only its gaps are ever needed."""
        raise ValueError("the gradient of a FarProblem stays with its shards: ask for model_gaps")

    def curvature_bound(self, graph: CollaborationGraph) -> float:
        """Refused: it depends on all rows."""
        raise ValueError("the curvature of a FarProblem is not known here")

    def _shards(self) -> list[tuple[int, int]]:
        assert self.crew is not None
        return list(pairwise(self.crew.cuts))

    def _ask(self, name: str, questions: list[tuple[Any, ...]]) -> list[Array]:
        assert self.crew is not None
        return self.crew.hands.ask(name, questions)
