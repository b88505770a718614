"""The founder excludes liars from a simulated network: one peer gets the list, and all drop them."""

from dada.peer.member import Rhythm
from dada.peer.signatures import Membership
from dada.sim.liars import Poisoner
from dada.sim.simulation import FOUNDER, WAKEUPS_PER_EXCHANGE, SimulatedNetwork
from dada.sim.virtual import Faults, VirtualSeal
from tests.helpers.eclipse import CONFIG, alike

N_USERS, REVOKED_AT_S, EXCHANGES = 24, 15.0, 8


def test_revoked_liars_are_dropped_by_all_within_a_few_exchanges():
    rhythm = Rhythm(local_steps=5, first_graph_steps=3, graph_every=4)
    network = SimulatedNetwork(
        alike(N_USERS, CONFIG.n_predictors),
        CONFIG,
        rhythm,
        Faults(lost=0.1, lying=0.15),
        steps=int(REVOKED_AT_S + EXCHANGES * WAKEUPS_PER_EXCHANGE),
        seed=0,
        liar_kinds=(Poisoner,),
    )
    world = network.world
    liars = {host.me for host in world.hosts if not host.is_honest}
    founder = Membership(b"", FOUNDER, VirtualSeal(FOUNDER))
    world.run(REVOKED_AT_S)
    honest = [host.member for host in network.joined]
    assert any(liars & set(member.sampling.view) for member in honest)
    assert any(liars & set(member.peer.neighbourhood.followers) for member in honest)
    world.hand(0, FOUNDER, founder.revoke(liars, counter=1))
    world.run(REVOKED_AT_S + EXCHANGES * WAKEUPS_PER_EXCHANGE)
    for host in network.joined:
        member = host.member
        assert set(member.peer.revoked) == liars
        assert not liars & {*member.sampling.view, *member.sampling.reserve, *member.sampling.cards}
        assert not liars & {*member.peer.edges.neighbours, *member.peer.neighbourhood.followers}
