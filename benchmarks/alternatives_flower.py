"""Federated averaging of one linear model with Flower; run by alternatives.py in an environment that has flwr.

    python benchmarks/alternatives_flower.py DATA.npz RESULT.json --rounds 20

In every round each client gets the model, makes one pass of gradient descent over its own rows, and sends it back.
"""

import argparse
import os
from itertools import pairwise

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from machine import processor_seconds, write_best


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("result")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 0.1])
    options = parser.parse_args()
    stored = dict(np.load(options.data).items())
    trials = [simulate(stored, options.data, options.rounds, rate) for rate in options.rates]
    write_best(trials, options.result)


def simulate(stored, path, rounds, rate):
    n_users, n = stored["train_start"].size - 1, stored["train_X"].shape[1]
    found = {}
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=n_users)
        first = ArrayRecord([np.zeros(n + 1, np.float32)])
        began = processor_seconds()
        result = strategy.start(
            grid=grid, initial_arrays=first, num_rounds=rounds, train_config=ConfigRecord({"rate": rate, "path": path})
        )
        found["seconds"] = processor_seconds() - began
        found["model"] = result.arrays.to_numpy_ndarrays()[0]

    resources = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}}
    run_simulation(server, client_app(), num_supernodes=n_users, backend_config=resources)
    X, y, start = (stored[f"test_{name}"] for name in ("X", "y", "start"))
    right = ((X @ found["model"][:-1] + found["model"][-1] > 0) == (y > 0)).astype(float)
    accuracy = np.mean([right[a:b].mean() for a, b in pairwise(start)])
    return {"seconds": found["seconds"], "updates": rounds * n_users, "accuracy": float(accuracy), "rate": rate}


def client_app():
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        # The file is read once by each worker, not once by each client.
        if not hasattr(np, "_stored"):
            np._stored = dict(np.load(config["path"]))
        stored, number = np._stored, int(context.node_config["partition-id"])
        rows = slice(stored["train_start"][number], stored["train_start"][number + 1])
        X, y = stored["train_X"][rows].astype(np.float32), stored["train_y"][rows]
        model = message.content["arrays"].to_numpy_ndarrays()[0].copy()
        error = 1 / (1 + np.exp(-(X @ model[:-1] + model[-1]))) - y
        model -= config["rate"] * np.append(X.T @ error, error.sum()).astype(np.float32) / len(y)
        content = {"arrays": ArrayRecord([model]), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


if __name__ == "__main__":
    main()
