"""Independent pieces of work on a Ray cluster: as a backend of joblib, and as an executor. Needs the extra `ray`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from dada.engine.ray import started


@contextmanager
def joblib_on_ray() -> Iterator[None]:
    """Let `joblib.Parallel`, and with it the searches of scikit-learn, work on the cluster."""
    started()
    from joblib import parallel_config
    from ray.util.joblib import register_ray

    register_ray()
    with parallel_config(backend="ray"):
        yield


class Tasks(Executor):
    """An executor whose workers are Ray's; a piece of work whose worker dies is done again elsewhere."""

    def __init__(self) -> None:
        self.ray = started()
        self.called = self.ray.remote(_called)
        self.under_way: set[Any] = set()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a function called."""
        reference = self.called.remote(function, args, kwargs)
        self.under_way.add(reference)
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda _: self.under_way.discard(reference))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End; with `cancel_futures`, what has not begun is left undone."""
        for reference in list(self.under_way) if cancel_futures else ():
            self.ray.cancel(reference)


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ray takes plain functions only; through this one, methods of objects go too."""
    return function(*args, **kwargs)
