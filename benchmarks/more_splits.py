"""Our defaults against the best central boosting on random splits beyond the ten of `dada reproduce beyond`.

    DADA_DATA=folder python benchmarks/more_splits.py
    DADA_DATA=folder python benchmarks/more_splits.py --data harws --first 21 --splits 5

Rules of the defaults were settled with test rows of those ten splits in view. The rival of a dataset is the
boosting that is best there on the ten splits. It is tuned as on the page, starting at its choice on the published
split. Finished results are kept in the folder of `--out`, so that a run continues where it ended.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from dada.experiments.beyond import SYNTHETIC, mean_and_error
from dada.experiments.lab import Lab
from dada.experiments.ours import METHODS
from dada.experiments.protocol import try_all

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "beyond.json"
# Named here, so that the defaults belong to the code behind the figures: runs load them by name.
OURS = METHODS["dada-auto"].name
BOOSTING = ("trees-user", "lightgbm-user", "xgboost-user")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    page = json.loads(RESULTS.read_text())
    known = [name for name in page["datasets"] if name not in SYNTHETIC]
    parser.add_argument("--data", nargs="+", choices=known, default=known)
    parser.add_argument("--first", type=int, default=11, help="number of the first split")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("build/more_splits"), help="folder for finished results")
    options = parser.parse_args()
    with Lab(options.out, seed=0, quick=False, n_jobs=1) as lab:
        for data in options.data:
            compare(lab, page, data, range(options.first, options.first + options.splits))


def compare(lab, page, data, splits):
    """Print means over splits, and the mean difference with its standard error."""
    on_ten = {rival: np.mean(page["random_splits"][data][rival]["means"]) for rival in BOOSTING}
    rival = max(on_ten, key=on_ten.__getitem__)
    pairs = [(data, OURS), (data, rival)]
    start = {pair: page["datasets"][data][pair[1]]["chosen"] for pair in pairs}
    runs = [try_all(lab, pairs, split=split, start=start).runs for split in splits]
    ours, theirs = (np.array([100 * np.mean(run[pair][0]["test"]) for run in runs]) for pair in pairs)
    gap, error = mean_and_error(ours - theirs)
    means = f"ours {ours.mean():.2f}  {rival} {theirs.mean():.2f}"
    print(f"{data:<16} {means}  difference {gap:+.2f} ± {error:.2f}", flush=True)


if __name__ == "__main__":
    main()
