"""Gossip learning of one linear model with gossipy; run by alternatives.py in an environment that has gossipy-dfl.

    python benchmarks/alternatives_gossipy.py DATA.npz RESULT.json --rounds 100 --node plain

Every node sends its model to a random peer once a round; the peer averages it with its own and makes one pass of
gradient descent over its own rows. With --node pens, a node first learns whose models do well on its rows (PENS, a
quarter of the rounds), then sends to those only.
"""

import argparse
import random
import time
from itertools import pairwise

import numpy as np
import torch
from gossipy import set_seed
from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
from gossipy.model.handler import TorchModelHandler
from gossipy.model.nn import LogisticRegression
from gossipy.node import GossipNode, PENSNode
from gossipy.simul import GossipSimulator
from machine import write_best

ROUND = 10


class NoEvaluation:
    """Empty data for the central test that gossipy expects, so that only the simulation is timed."""

    def has_test(self):
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("result")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--node", choices=["plain", "pens"], default="plain")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.01])
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored = np.load(options.data)
    trials = [simulate(stored, options.rounds, options.node, rate) for rate in options.rates]
    write_best(trials, options.result)


def simulate(stored, rounds, kind, rate):
    set_seed(0)
    random.seed(0)
    train, test = users_of(stored, "train"), users_of(stored, "test")
    network = StaticP2PNetwork(len(train))
    net = LogisticRegression(stored["train_X"].shape[1], 2)
    for weights in net.parameters():
        torch.nn.init.zeros_(weights)
    nodes = {}
    for number, rows in enumerate(train):
        handler = TorchModelHandler(
            net, torch.optim.SGD, {"lr": rate}, torch.nn.CrossEntropyLoss(), local_epochs=1, batch_size=0,
            create_model_mode=CreateModelMode.MERGE_UPDATE,
        )  # fmt: skip
        own = dict(idx=number, data=(rows, None), round_len=ROUND, model_handler=handler, p2p_net=network)
        nodes[number] = GossipNode(**own) if kind == "plain" else PENSNode(**own, step1_rounds=rounds // 4)
        # gossipy draws the moment of a round from 0..ROUND, the last of which never comes.
        nodes[number].delta %= ROUND
    simulator = GossipSimulator(nodes, NoEvaluation(), delta=ROUND, protocol=AntiEntropyProtocol.PUSH)
    simulator.init_nodes()
    began = time.process_time()
    simulator.start(n_rounds=rounds)
    seconds = time.process_time() - began
    right = [accuracy(nodes[number].model_handler.model, rows) for number, rows in enumerate(test)]
    return {"seconds": seconds, "updates": rounds * len(train), "accuracy": float(np.mean(right)), "rate": rate}


def users_of(stored, part):
    X, y, start = (stored[f"{part}_{name}"] for name in ("X", "y", "start"))
    cuts = pairwise(start)
    return [(torch.from_numpy(X[a:b].astype(np.float32)), torch.from_numpy(y[a:b].astype(np.int64))) for a, b in cuts]


def accuracy(model, rows):
    with torch.no_grad():
        return float((model(rows[0]).argmax(dim=1) == rows[1]).float().mean())


if __name__ == "__main__":
    main()
