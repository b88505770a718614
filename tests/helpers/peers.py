"""Peers of a test, wired by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dada.peer.inputs import Fact, Persist, Received, Restored, Send, Started
from dada.peer.messages import Message
from dada.peer.peer import Peer


def keep(message: Message) -> bool:
    return False


class WiredPeers:
    """Started peers with their stored records. A fact given to one is followed by all messages that result from it."""

    def __init__(self, make: Callable[[bytes], Peer], names: Iterable[bytes]) -> None:
        self.make = make
        self.peers = {name: make(name) for name in names}
        self.records: dict[bytes, dict[bytes, bytes]] = {name: {} for name in self.peers}
        self.sent: list[Message] = []
        for name in self.peers:
            self.give(name, Started(0.0))

    def __getitem__(self, name: bytes) -> Peer:
        return self.peers[name]

    def give(self, name: bytes, fact: Fact, loses: Callable[[Message], bool] = keep) -> None:
        """Give a peer a fact, and deliver messages until there are none, except those that are lost."""
        queue = [(name, effect) for effect in self.peers[name].handle(fact)]
        for sender, effect in queue:
            if isinstance(effect, Persist):
                self.records[sender].pop(effect.key, None)
                if effect.value:
                    self.records[sender][effect.key] = effect.value
            elif isinstance(effect, Send):
                self.sent.append(effect.message)
                if not loses(effect.message):
                    answers = self.peers[effect.to].handle(Received(fact.now, sender, effect.message))
                    queue.extend((effect.to, answer) for answer in answers)
        assert len(queue) < 1000

    def restart(
        self,
        name: bytes,
        records: dict[bytes, bytes] | None = None,
        now: float = 0.0,
        loses: Callable[[Message], bool] = keep,
    ) -> None:
        """Start a peer again, from its own records or from others."""
        self.peers[name] = self.make(name)
        self.peers[name].handle(Restored(dict(self.records[name] if records is None else records)))
        self.give(name, Started(now), loses)
