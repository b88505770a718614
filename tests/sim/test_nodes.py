"""Real nodes on virtual links and disks: they keep their promises, and a seed repeats them."""

import pytest

from dada.net.session import Session
from dada.sim.invariants import InvariantError
from dada.sim.liars import KINDS
from tests.helpers.networks import nodes


def test_nodes_survive_crashes_broken_links_and_bad_disks():
    evidence, distance = nodes(1).run().counts, nodes(2, graph="distance, block").run().counts
    assert min(evidence["messages"], distance["messages"]) > 500
    of_links = {"broken", "deaf", "half-open", "refusing", "stopped", "doubled", "unanswered"}
    assert of_links | {"crash", "power cut", "damage", "full"} <= {*evidence, *distance}


@pytest.mark.parametrize("graph", ["evidence", "distance, block"])
def test_nodes_keep_their_promises_among_liars(graph):
    kinds = KINDS[::2] if graph == "evidence" else KINDS[1::2]
    network = nodes(3, n=5 + len(kinds), graph=graph, liar_kinds=kinds)
    assert network.run().counts["MessageRefused"] > 0
    assert [host.number for host in network.hosts if not host.is_honest] == list(range(5, 5 + len(kinds)))


def test_a_dead_link_that_stays_open_is_found(monkeypatch):
    monkeypatch.setattr(Session, "beat", lambda session, now: True)
    with pytest.raises(InvariantError, match="which has none"):
        nodes(1).run()
