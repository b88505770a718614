"""Break the code of peers in known ways, and see which faults the simulation and the tests detect.

    python benchmarks/mutants.py
    python benchmarks/mutants.py --tests --only speak-before-storing
    python benchmarks/mutants.py --json

Each mutant replaces a piece of text that occurs exactly once in a file. It is applied to a copy of the packages `peer`
and `net` in a temporary folder, and small networks with all faults and many liars run with this copy, until the first
violation; for mutants of sessions, links and nodes, these are networks of real nodes on virtual links. A mutant is
caught if an invariant is violated or an error is raised. `--tests` also runs the tests of peers, simulations and stores
with the copy, for those that the simulation does not catch; that takes minutes per mutant.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import dada
import dada.fitting
from dada.data import BoostedTrees, Linear, Stumps, Trees, Union, moons

ROOT = Path(__file__).parents[1]
PACKAGE = Path(dada.__file__).parent
COPIED = ("peer", "net")
TESTS = ("tests/peer", "tests/sim", "tests/net/test_store.py")


class Mutant(NamedTuple):
    """A change of the code, and what it breaks."""

    name: str
    file: str
    old: str
    new: str
    breaks: str


# Processor time after which a network counts as hanging, in seconds.
LONGEST_S = 60

MUTANTS = (
    # -- storage ---------------------------------------------------------------------------------------------------
    Mutant("speak-before-storing", "peer/peer.py", "return [self.own.record(), *sends]",
           "return [*sends, self.own.record()]", "a crash loses a model that neighbours already have"),
    Mutant("model-not-stored", "peer/peer.py", "return [self.own.record(), *sends]", "return sends",
           "a restarted peer continues from an old model"),
    Mutant("epoch-not-stored", "peer/peer.py", "return [self.own.begin_epoch(), *self.neighbourhood.start(fact.now)]",
           "return [self.own.begin_epoch(), *self.neighbourhood.start(fact.now)][1:]",
           "numbers repeat after a restart"),
    Mutant("epoch-stored-last", "peer/peer.py", "return [self.own.begin_epoch(), *self.neighbourhood.start(fact.now)]",
           "return [self.own.begin_epoch(), *self.neighbourhood.start(fact.now)][::-1]",
           "the new epoch is sent before it is stored"),
    Mutant("epoch-not-raised", "peer/model.py", "max(self.shared.epoch, after) + 1, 0",
           "max(self.shared.epoch, after, 1), 0", "every life has the same epoch"),
    Mutant("epoch-not-restored", "peer/model.py", "if EPOCH_KEY in records:", "if False:",
           "every life has the same epoch"),
    Mutant("model-not-restored", "peer/model.py", "if MODEL_KEY in records:", "if False:",
           "a restarted peer forgets what it learned"),
    Mutant("margins-not-restored", "peer/model.py",
           "steps.refresh_margins(self.user, self.model.n_support)\n        self.is_stale = True",
           "self.is_stale = True",
           "a restarted peer learns from wrong margins"),
    Mutant("edge-not-stored", "peer/edges.py", "        if weight > 0.0:\n            return [self.record(peer)]",
           "        if weight > 0.0:\n            return []", "a restarted peer has no neighbours"),
    Mutant("edge-not-deleted", "peer/edges.py", 'return Persist(EDGE_KEY + peer, b"")',
           'return Persist(b"edge?" + peer, b"")', "forgotten edges return after a restart"),
    Mutant("follower-not-stored", "peer/neighbourhoods.py", "effects.append(self._hold(sender, held))",
           "self._hold(sender, held)", "a restarted peer does not know its followers"),
    Mutant("counters-not-stored", "peer/member.py", "effects += [self.planner.record(), *self._handle(action)]",
           "effects += self._handle(action)", "a restarted peer begins its plan again"),
    Mutant("view-not-stored", "peer/sampling.py",
           "stored = [self.record()] if self.exchanges % STORED_EVERY == 1 else []", "stored: list[Effect] = []",
           "a restarted peer knows nobody"),
    # -- copies of models ------------------------------------------------------------------------------------------
    Mutant("gap-ignored", "peer/edges.py", " or change.sequence != copy.sequence + 1:", ":",
           "a copy misses a change"),
    Mutant("old-snapshot-taken", "peer/edges.py", "edge.copy.precedes(copy.number)",
           "edge.copy.number != copy.number",
           "a late snapshot replaces a newer copy"),
    Mutant("snapshot-never-requested", "peer/edges.py", "return [Send(peer, SnapshotRequest())]", "return []",
           "a copy that missed a change stays old"),
    Mutant("number-not-counted", "peer/model.py", "        self.model.sequence += 1\n        return ModelDelta(",
           "        return ModelDelta(", "two moves have one number"),
    Mutant("shared-number-not-counted", "peer/model.py", "        shared.sequence += 1\n", "",
           "two changes have one number"),
    Mutant("code-number-ignored", "peer/copies.py", "        self.sequence = change.sequence\n", "",
           "the number of a copy is too low"),
    Mutant("sum-not-updated", "peer/model.py", "        if not self.is_stale:\n            scratch = self.scratch",
           "        if False:\n            scratch = self.scratch", "neighbours' changes have no effect"),
    Mutant("sum-stale-after-snapshot", "peer/edges.py",
           "edge.snapshot_requested = -math.inf\n            self.own.is_stale = True",
           "edge.snapshot_requested = -math.inf", "the sum of neighbours' models contains an old copy"),
    Mutant("sum-stale-after-weight", "peer/edges.py", "        if change != 0.0:\n            self.own.is_stale = True",
           "        if change != 0.0:\n            pass", "a new weight has no effect"),
    Mutant("changes-to-strangers", "peer/peer.py",
           "return [Send(peer, message) for peer in self.neighbourhood.followers]",
           "return [Send(peer, message) for peer in sorted({*self.edges, *self.neighbourhood.followers})]",
           "peers that do not follow receive changes"),
    # -- agreement -------------------------------------------------------------------------------------------------
    Mutant("report-not-repeated", "peer/edges.py", "edge.repeats, edge.acknowledged = repeats, False",
           "edge.repeats, edge.acknowledged = repeats, True", "a lost report counts as received"),
    Mutant("old-follow-wins", "peer/neighbourhoods.py", "follow.version > held.version or (",
           "follow.version != held.version or (", "a late message undoes a newer one"),
    Mutant("unfollow-not-sent", "peer/neighbourhoods.py",
           "            self.ledger.graph += follow_cost()\n            effects.append(self.edges.announce(peer, now))",
           "            self.ledger.graph += follow_cost()", "the other end is never informed"),
    Mutant("follow-not-acknowledged", "peer/neighbourhoods.py",
           "return [*effects, self._acknowledgement(sender, held, follow.wants_statement)]", "return effects",
           "every follower gives up"),
    Mutant("lower-version-wins", "peer/neighbourhoods.py", "if (state.version, state.author) < edge.rank:",
           "if (state.version, state.author) > edge.rank:", "an old state of an edge replaces a new one"),
    Mutant("author-ignored", "peer/neighbourhoods.py", "if (state.version, state.author) < edge.rank:",
           "if state.version <= edge.version and state.author != edge.author:",
           "two ends that decide at once never agree"),
    Mutant("versions-start-again", "peer/edges.py", "self._next = epoch * VERSIONS_PER_LIFE", "self._next = 0",
           "versions repeat after a power cut"),
    Mutant("end-without-version", "peer/edges.py", "return self.decide(peer, edge, 0.0)",
           "return self.set(peer, edge, 0.0, edge.version, edge.author)", "an ended edge is not newer than before"),
    Mutant("degree-not-updated", "peer/edges.py", "self.degree = self.degree + change if any_left else 0.0",
           "self.degree = self.degree if any_left else 0.0", "peers report wrong degrees"),
    # -- bounds and liars ------------------------------------------------------------------------------------------
    Mutant("too-many-neighbours", "peer/neighbourhoods.py", "keep_best(np.array(scores), self.config.n_neighbours,",
           "keep_best(np.array(scores), 3 * self.config.n_neighbours,", "a peer follows more than it may"),
    Mutant("ball-not-checked", "peer/copies.py",
           "if np.abs(values.astype(np.float64)).sum() > beta * (1 + SLACK):", "if False:",
           "a liar's model of any size is taken"),
    Mutant("nan-not-checked", "peer/copies.py", "if not np.isfinite(values).all() or (values == 0).any():",
           "if (values == 0).any():", "a liar's model is not finite"),
    Mutant("weight-not-checked", "peer/neighbourhoods.py", "if not 0.0 <= state.weight <= self._heaviest:",
           "if not 0.0 <= state.weight:", "a liar claims any weight"),
    Mutant("confidence-inverted", "peer/edges.py", "return self.own / self.largest", "return self.largest / self.own",
           "users with few samples trust themselves most"),
    Mutant("view-of-itself", "peer/sampling.py", "if known.peer == self.me or known.peer in self.excluded:",
           "if known.peer in self.excluded:", "a peer asks itself"),
    Mutant("statements-compared-wrongly", "peer/signatures.py", "if known.digest != statement.digest:",
           "if known.digest == statement.digest:", "honest peers are taken for liars"),
    Mutant("decoding-errors-raised", "peer/member.py", "except CodecError as error:", "except KeyError as error:",
           "garbage stops a peer"),
    Mutant("epoch-report-ignored", "peer/peer.py", "return self._on_epoch(sender, message, now)", "return []",
           "nobody accepts messages of a peer that started from an old copy of its records"),
    # -- the store -------------------------------------------------------------------------------------------------
    Mutant("checksum-not-compared", "net/store.py", "if zlib.crc32(key + value) != checksum:", "if False:",
           "damaged records are loaded"),
    Mutant("store-keeps-deleted", "net/store.py", 'cursor.execute("DELETE FROM records WHERE key = ?", (change.key,))',
           "pass", "deleted records return"),
    Mutant("epoch-not-synced", "net/store.py", "is_durable = any(change.key in _DURABLE_KEYS for change in changes)",
           "is_durable = False", "a power cut loses the epoch"),
    Mutant("clock-ignored", "net/store.py",
           "return max(stored, newest) if len(stored) == len(newest) else stored", "return stored",
           "a peer that starts from an old copy of its records repeats an epoch"),
    # -- sessions, links and nodes ---------------------------------------------------------------------------------
    Mutant("write-error-raised", "net/session.py", "except TransportError:", "except KeyError:",
           "a link that breaks during a write ends with an error"),
    Mutant("silence-ignored", "net/session.py", "if silence >= self._options.dead_after_s:", "if False:",
           "a link that is dead in one direction stays open"),
    Mutant("ping-not-answered", "net/session.py", "                    self._queue(_PONG)", "                    pass",
           "links without messages end"),
    Mutant("frame-error-raised", "net/links.py", "except FrameError as error:", "except KeyError as error:",
           "a link that breaks inside a frame ends with an error"),
    Mutant("session-not-removed", "net/links.py", "is session:\n            self._retire(session)", "is session:",
           "messages go to a closed link"),
    Mutant("replaced-link-not-closed", "net/links.py", "        session.close()\n        self._past += session.traffic",
           "        self._past += session.traffic", "links pile up"),
    Mutant("refused-link-not-closed", "net/links.py", "        except BaseException:\n            link.close()\n",
           "        except BaseException:\n", "strangers keep links open"),
    Mutant("both-links-closed", "net/links.py", "return (self._transport.me < new.peer) == new.is_dialler",
           "return not new.is_dialler", "two peers that dial each other keep different links"),
    Mutant("neighbours-not-redialled", "net/links.py", "elif self._dial(peer) is None and absence is None:",
           "elif False:", "a broken link is not replaced"),
    Mutant("full-disk-ignored", "net/node.py", "self.stop()\n                return", "return",
           "a node that cannot store continues"),
    Mutant("sends-what-is-not-stored", "net/node.py", "self.stop()\n                return", "self.stop()",
           "a crash loses what neighbours already have"),
    # -- trees -----------------------------------------------------------------------------------------------------
    Mutant("tree-in-use-forgotten", "peer/grove.py", "if not forgotten:", "if True:",
           "a model loses a tree that its owner gave up"),
    Mutant("trees-not-stored", "peer/grove.py",
           'return [Persist(DICTIONARY_KEY + self.name, b"".join(self.atoms))] if self.names else []', "return []",
           "a restarted peer does not know the trees of its model"),
    Mutant("trees-in-order-of-arrival", "peer/grove.py", "known, sorted(known)", "known, list(known)",
           "peers number the same trees differently"),
    Mutant("one-name-for-all-dictionaries", "peer/grove.py", "return dictionary_name(self.names)",
           'return b"the same"', "models over different trees are mixed"),
    # -- boosted trees ---------------------------------------------------------------------------------------------
    Mutant("grown-tree-not-stored", "peer/boosting.py",
           "return [*self.records.stored([self.me]), *self._send_records([record], to)]",
           "return self._send_records([record], to)", "a restarted peer has lost a tree that it grew"),
    Mutant("boosted-trees-of-others-not-stored", "peer/boosting.py",
           "[*self.records.stored([*(record.peer for record in new), *gone])]", "[]",
           "a restarted peer has lost trees of others"),
    Mutant("boosted-trees-replaced", "peer/signed_trees.py", "merged = held.get(record.peer, {}) | {", "merged = {",
           "the newest trees of a grower replace its others"),
    Mutant("own-boosted-trees-not-restored", "peer/signed_trees.py", "if key.startswith(BOOSTED_KEY)",
           "if key.startswith(BOOSTED_KEY) and key != BOOSTED_KEY + self.me", "a peer forgets the trees that it grew"),
    Mutant("leaves-of-old-trees", "peer/boosting.py", "if self._taken != self.records.digest:", "if not self._taken:",
           "values of leaves do not follow new trees"),
)  # fmt: skip
# Files whose mutants run in networks of nodes, with trees, or with boosted trees.
NODE_FILES = ("net/session.py", "net/links.py", "net/node.py")
TREE_FILES = ("peer/grove.py",)
BOOSTED_FILES = ("peer/boosting.py", "peer/signed_trees.py")


def mutated(mutant, folder):
    """Copy the packages into a folder, and apply a mutant to the copy."""
    for name in COPIED:
        shutil.copytree(PACKAGE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(
            f"{mutant.name}: its old text occurs {text.count(mutant.old)} times in {mutant.file}, not once"
        )
    path.write_text(text.replace(mutant.old, mutant.new))


def reload_from(folder):
    """Let the next imports take the packages of a folder first; None restores the originals."""
    for name in [name for name in sys.modules if name.split(".")[:2] in (["dada", "peer"], ["dada", "net"])]:
        del sys.modules[name]
    # Modules that use peers must not keep the originals.
    users = [name for name in sys.modules if name.split(".")[:2] == ["dada", "sim"]]
    for name in (*users, "dada.fitting.boosted_peers"):
        sys.modules.pop(name, None)
    for name in ("peer", "net", "sim"):
        vars(dada).pop(name, None)
    vars(dada.fitting).pop("boosted_peers", None)
    dada.__path__[:] = [str(PACKAGE)] if folder is None else [str(folder), str(PACKAGE)]


def violation(seeds, users, steps, problems):
    """The first violation in networks with all faults, or None; the rules of peers alternate."""
    from dada.sim import SimulatedNetwork, network_of, network_problem
    from dada.sim.virtual import ALL

    # A small network still has liars of several kinds, a peer for each fault, and more candidates than neighbours.
    faults = replace(ALL, lying=0.25, restored=0.1, doubled=0.05, damaged=0.05)
    for seed in seeds:
        graph, step = ("evidence", "distance")[seed % 2], ("block", "pairwise")[seed // 2 % 2]
        if seed not in problems:
            _, problems[seed], _ = network_problem(moons(seed, n_users=users, n_test=1).train, Stumps(n=40), mu=1.0)
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
        try:
            usual = network_of(problems[seed], faults, graph=graph, step=step, steps=steps, seed=seed)
            config = replace(usual.config, n_neighbours=min(3, usual.config.n_neighbours))
            SimulatedNetwork(problems[seed], config, usual.rhythm, faults, steps=steps, seed=seed).check()
        except Exception as error:
            return f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0]}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


def trees_violation(seeds, users=8, steps=30):
    """The first violation in networks with trees, one of whose peers grows others half-way, or None."""
    from dada.sim import network_of, network_problem
    from dada.sim.virtual import Faults

    recipe, faults = Union(Linear(), Trees(per_user=3, depth=2)), Faults.named("loss,churn")
    for seed in seeds:
        people = moons(seed, n_users=users, n_test=1).train
        _, problem, orchard = network_problem(people, recipe, mu=0.1, loss="logistic", seed=seed)
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
        try:
            made = network_of(problem, faults, graph="evidence", step="block", steps=steps, seed=seed, orchard=orchard)
            for k in range(2, 5):
                made.replant(k, orchard.plots[(k + 1) % users].grown[:1], 0.6 * steps)
            made.check()
        except Exception as error:
            return f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0]}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


def boosted_violation(seeds, users=10, steps=30):
    """The first violation in networks that boost trees, with losses, crashes and liars, or None."""
    from dada.fitting.boosted_peers import boosted_users
    from dada.sim import network_of, network_problem
    from dada.sim.liars import Exploder, Grafter
    from dada.sim.virtual import Faults

    faults = replace(Faults.named("loss,churn,byzantine"), lying=0.3)
    recipe = BoostedTrees(rounds=20, rate=0.3, cuts=7)
    for seed in seeds:
        people = moons(seed, n_users=users, n_test=1).train
        _, problem, _ = network_problem(people, Linear(), mu=0.1, loss="logistic", seed=seed)
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
        try:
            options = {"steps": steps, "seed": seed, "boosted": boosted_users(recipe, people)}
            options |= {"liar_kinds": (Grafter, Exploder)}
            network_of(problem, faults, graph="evidence", step="block", **options).check()
        except Exception as error:
            return f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0]}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


def nodes_violation(seeds, problems, users=8, duration_s=60.0):
    """The first violation in networks of real nodes on virtual links, or None."""
    from dada.sim import network_of, network_problem
    from dada.sim.nodes import NodeNetwork
    from dada.sim.virtual import Faults

    for seed in seeds:
        if ("nodes", seed) not in problems:
            people = moons(seed, n_users=users, n_test=1).train
            _, problems["nodes", seed], _ = network_problem(people, Stumps(n=40), mu=1.0)
        problem = problems["nodes", seed]
        usual = network_of(
            problem, Faults(), graph=("evidence", "distance")[seed % 2], step="block", steps=20, seed=seed
        )
        config = replace(usual.config, n_neighbours=3)
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
        try:
            NodeNetwork(problem, config, usual.rhythm, duration_s=duration_s, seed=seed).run()
        except Exception as error:
            return f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0]}"
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


def _hang(*_):
    raise TimeoutError(f"no end after {LONGEST_S} s")


def caught_by_tests(folder):
    """Whether a test fails with the packages of a folder."""
    code = f"import dada, pytest, sys; dada.__path__.insert(0, {str(folder)!r}); "
    code += f"sys.exit(pytest.main(['-qx', '-p', 'no:cacheprovider', *{TESTS!r}]))"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True).returncode != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of mutants")
    parser.add_argument("--seeds", type=int, default=8, help="most networks per mutant")
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--steps", type=int, default=15, help="wake-ups per user")
    parser.add_argument("--tests", action="store_true", help="run the tests with those that survive")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on stdout")
    options = parser.parse_args()
    signal.signal(signal.SIGVTALRM, _hang)
    chosen = [mutant for mutant in MUTANTS if any(part in mutant.name for part in options.only)]
    problems = {}

    def find(file):
        seeds = range(options.seeds)
        if file in NODE_FILES:
            return nodes_violation(seeds, problems)
        if file in TREE_FILES:
            return trees_violation(seeds)
        if file in BOOSTED_FILES:
            return boosted_violation(seeds)
        return violation(seeds, options.users, options.steps, problems)

    # One file for each kind of network.
    special = (NODE_FILES, TREE_FILES, BOOSTED_FILES)
    for file in {tuple(mutant.file in files for files in special): mutant.file for mutant in chosen}.values():
        if (sound := find(file)) is not None:
            raise SystemExit(f"the code without mutants fails: {sound}")
    rows = []
    for mutant in chosen:
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            mutated(mutant, Path(folder))
            reload_from(Path(folder))
            found = find(mutant.file)
            reload_from(None)
            by_tests = caught_by_tests(folder) if options.tests and found is None else None
        row = {"mutant": mutant.name, "breaks": mutant.breaks, "simulation": found, "tests": by_tests}
        rows.append(row | {"seconds": round(time.process_time() - started, 1)})
        if not options.json:
            tests = "" if by_tests is None else ("  tests: caught" if by_tests else "  tests: SURVIVES")
            print(
                f"{mutant.name:<30}{'SURVIVES: ' + mutant.breaks if found is None else found[:120]}{tests}", flush=True
            )
    n_caught = sum(row["simulation"] is not None for row in rows)
    if options.json:
        print(json.dumps({"mutants": rows, "caught_by_simulation": n_caught, "of": len(rows)}, indent=2))
        return
    print(f"The simulation caught {n_caught} of {len(rows)} mutants ({n_caught / len(rows):.0%}).")
    if options.tests and n_caught < len(rows):
        print(f"The tests caught {sum(row['tests'] is True for row in rows)} of the other {len(rows) - n_caught}.")


if __name__ == "__main__":
    main()
