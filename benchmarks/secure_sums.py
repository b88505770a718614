"""Secure sums of School's users in a simulated network: accuracy of home models, and bytes per peer.

    python benchmarks/secure_sums.py --splits 1 5 6 --epsilon 0.25

Every user is a peer that exchanges what it holds with a random partner, once in each turn. A part of the messages is
lost, and a part of the peers drops out for good once the call is made. The task, the base predictors and the noise are
those of `dada reproduce privacy`.
"""

import argparse
import functools
import json

import msgspec
import numpy as np

from dada.experiments.privacy_study import alone_score, row_task, with_releases
from dada.peer.inputs import Send
from dada.peer.messages import Release, encode
from dada.peer.releases import Call, ExactRows, Part, ReleaseTerms
from dada.peer.secure_sums import SecureSums
from dada.privacy import secure_sum as masking
from dada.privacy.noise import Bits
from dada.privacy.release import StatisticsMechanism
from dada.sim.virtual import VirtualSeal

# All peers restore the keys of those who dropped out; in one process each agreed key is computed once.
masking.x25519 = functools.cache(masking.x25519)


def is_called(peer):
    """Whether a peer has received a call."""
    return any(isinstance(msgspec.msgpack.decode(one.body, type=Part), Call) for one in peer.held.values())


def run(split, epsilon, loss, absent, seed, most_turns=400):
    """Accuracies and traffic of one network."""
    task, rng = row_task("school", split, seed), np.random.default_rng([seed, split, 9])
    h, y = task.rows.h, task.rows.y[:, None]
    mechanism = StatisticsMechanism.calibrated(epsilon, 1e-5, n_predictors=h.shape[1], n_outputs=1, norm=task.rows.norm)
    terms, names = ReleaseTerms(mechanism, "school", task.coupling), []
    peers = {}
    for k, part in enumerate(task.parts()):
        names.append(b"peer %03d" % k)
        rows = ExactRows(h[part], y[part])
        peers[names[-1]] = SecureSums(names[-1], terms, rows, VirtualSeal(names[-1]), rng.bytes)
    present, n_bytes, part_bytes, turns = list(names), 0, 0, 0
    for turns in range(1, most_turns + 1):
        for name in rng.permutation(present).tolist():
            peer = peers[name]
            if peer.own is None and peer.estimate(0).send:
                peer.publish(peer.draw(Bits(rng.bytes)))
            partner = present[int(rng.integers(len(present)))]
            queue = [(name, effect) for effect in peer.ask(partner)] if partner != name else []
            for source, effect in queue:
                if isinstance(effect, Send):
                    n_bytes += len(encode(effect.message))
                    part_bytes += len(encode(effect.message)) * isinstance(effect.message, Release)
                    if rng.random() >= loss:
                        answers = peers[effect.to].receive(source, effect.message)
                        queue.extend((effect.to, answer) for answer in answers)
        if len(present) == len(names) and is_called(peers[names[0]]):
            present = sorted(rng.choice(names, len(names) - int(absent * len(names)), replace=False).tolist())
        if turns % 10 == 0 and all(peers[name].complete() for name in present):
            break
    sums = {tuple(peers[name].complete()[0].values.tolist()) for name in present if peers[name].complete()}
    known = [peers[name] for name in present if peers[name].complete()]
    models = np.stack([peers[name].home_model(rng) for name in names])
    own = [sum(len(one.body) for one in known[0].held.values() if one.owner == name) for name in names] if known else []
    return {
        "split": split, "epsilon": epsilon, "peers": len(names), "absent": len(names) - len(present), "turns": turns,
        "different sums": len(sums), "peers with a sum": len(known),
        "peers in it": len(known[0].complete()[0].owners) if known else 0,
        "home": task.score(models), "alone": alone_score("school", split, seed),
        "simulated secure sum": with_releases("school", split, epsilon, True, seed)["home"],
        "KB of one peer's parts": float(np.mean(own)) / 1e3, "KB sent per peer": n_bytes / len(names) / 1e3,
        "KB of parts sent per peer": part_bytes / len(names) / 1e3,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, nargs="+", default=[1, 5, 6])
    parser.add_argument("--epsilon", type=float, default=0.25)
    parser.add_argument("--loss", type=float, default=0.1, help="part of the messages that is lost")
    parser.add_argument("--absent", type=float, default=0.05, help="part of the peers that drops out after the call")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for split in options.splits:
        print(json.dumps(run(split, options.epsilon, options.loss, options.absent, options.seed)), flush=True)


if __name__ == "__main__":
    main()
