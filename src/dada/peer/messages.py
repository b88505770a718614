"""The messages of peers, and their encoding.

No message contains data: it carries model coordinates, edge weights, a loss, a degree, a number of samples, the gain of
a weaker coupling, whether one peer follows another, addresses of peers, revoked members, trees, signatures, statistics
with noise or, where peers boost trees, histograms of residuals. Models are numbered by (epoch, sequence): the epoch
grows by one each time a peer starts, the sequence by one with each change, so a receiver knows whether it has missed
any.

The types bound every number, list and byte string. `decode` refuses whatever is beyond, so later code can compute with
all that it is given: no counter overflows, and all that follows from a message can be stored and loaded again.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

# Versions of one life: an epoch times this number, plus a count.
VERSIONS_PER_LIFE = 2**28
# The largest received version leaves room to count on.
LARGEST_EPOCH, LARGEST_VERSION, LARGEST_STORED_VERSION = 2**32, 2**61, 2**62
LARGEST_COUNT, LARGEST_SIZE = 2**53, 10**9
LONGEST_ID, OLDEST, MOST_ADDRESSES, LONGEST_ADDRESS = 64, 10_000, 8, 256
DIGEST_SIZE, SIGNATURE_SIZE = 16, 64
# Releases, or parts of secure sums, that a peer holds, and bytes of the name of one.
MOST_RELEASES, RELEASE_NAME_SIZE = 4096, 8
MOST_REVOKED = 1024
# Records of a census, bytes of the check of one, and the largest gain in it.
MOST_RECORDS, CHECK_SIZE, MOST_GAIN = 128, 4, 1000
# Records of trees, trees of one record, bytes of a tree, versions of a record, and bytes of the name of a dictionary.
MOST_GROWERS, MOST_ATOMS, LARGEST_ATOM, MOST_PLANTINGS, DICTIONARY_SIZE = 256, 64, 256, 256, 8
# Boosted trees of one record, bytes of one, and of what a grower and its pool send at a level of a tree.
MOST_BOOSTED, LARGEST_BOOSTED, LARGEST_REQUEST, LARGEST_BODY = 256, 1024, 1 << 16, 1 << 17

PeerId = bytes
SentId = Annotated[bytes, Meta(min_length=1, max_length=LONGEST_ID)]
Epoch = Annotated[int, Meta(ge=0, le=LARGEST_EPOCH)]
Life = Annotated[bytes, Meta(max_length=16)]
Version = Annotated[int, Meta(ge=0, le=LARGEST_VERSION)]
Count = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
SampleCount = Annotated[int, Meta(ge=1, le=LARGEST_SIZE)]
Address = Annotated[str, Meta(max_length=LONGEST_ADDRESS)]
Addresses = Annotated[tuple[Address, ...], Meta(max_length=MOST_ADDRESSES)]
Digest = Annotated[bytes, Meta(max_length=DIGEST_SIZE)]
Signature = Annotated[bytes, Meta(max_length=SIGNATURE_SIZE)]
Gain = Annotated[int, Meta(ge=-MOST_GAIN, le=MOST_GAIN)]


class _Message(msgspec.Struct, frozen=True, array_like=True):
    """A struct whose encoding is the list of its fields, after its tag."""


class ModelSnapshot(_Message, frozen=True):
    """A whole model: little-endian uint32 coordinates and float32 values, in the owner's order.

    Under block steps it is a shared model, and `values` is its code (see `dada.peer.copies`) after a byte with the bits
    of a value. `coordinates` is then the name of the dictionary with trees that the code numbers, or empty without.
    """

    epoch: Epoch
    sequence: Count
    coordinates: bytes
    values: bytes


class Statement(_Message, frozen=True):
    """The owner of a model states its digest at a number (see `dada.peer.signatures`)."""

    epoch: Epoch
    sequence: Count
    digest: Digest
    signature: Signature = b""


class Hello(_Message, frozen=True, tag=0):
    """First on every connection: digest of the sender's learning problem, its epoch, and a random id of its life."""

    problem: Annotated[bytes, Meta(max_length=64)]
    epoch: Epoch
    life: Life = b""


class Goodbye(_Message, frozen=True, tag=1):
    """The sender leaves for good; its edges may be dropped."""


class EpochSeen(_Message, frozen=True, tag=16):
    """The answer to an old epoch, or to another life with the same one: the highest epoch that the sender has seen."""

    epoch: Epoch
    life: Life = b""


class ModelDelta(_Message, frozen=True, tag=2):
    """Move number `sequence` of the sender's model (see `dada.core.model_steps.Move`)."""

    epoch: Epoch
    sequence: Count
    j: Annotated[int, Meta(ge=0, lt=2**31)]
    positive: bool
    away: Annotated[int, Meta(ge=-2, lt=2**31)]
    gamma: float
    takes_all: bool


class BlockChange(_Message, frozen=True, tag=17):
    """Change number `sequence` of the sender's shared model: a code (see `dada.peer.copies`)."""

    epoch: Epoch
    sequence: Count
    code: bytes


ModelChange = ModelDelta | BlockChange


class SnapshotRequest(_Message, frozen=True, tag=3):
    """A request for the receiver's whole model."""


class SnapshotReply(_Message, frozen=True, tag=4):
    """The sender's whole model, and its signature of the statement about it."""

    snapshot: ModelSnapshot
    signature: Signature = b""


class StateRequest(_Message, frozen=True, tag=5):
    """A request at a graph step; the reply returns `round`."""

    round: Count


class StateReply(_Message, frozen=True, tag=6):
    """Distance graph: the state of a peer: model, loss on its own samples, degree, number of samples."""

    round: Count
    snapshot: ModelSnapshot
    loss: float
    degree: float
    size: SampleCount


class EdgeState(_Message, frozen=True, tag=7):
    """Distance graph: the sender's state of the edge to the receiver. The higher (version, author) wins at both ends.

    A sender that proposes a new weight attaches its model if the receiver may not have it yet.
    """

    version: Version
    author: Annotated[bytes, Meta(max_length=LONGEST_ID)]
    weight: float
    snapshot: ModelSnapshot | None = None


class EdgeAck(_Message, frozen=True, tag=8):
    """Distance graph: the version of the edge that the sender holds, the number of its model, and its sample count."""

    version: Version
    author: Annotated[bytes, Meta(max_length=LONGEST_ID)]
    epoch: Epoch
    sequence: Count
    size: SampleCount = 1


class Descriptor(_Message, frozen=True):
    """How to reach a peer: its id, the number of exchanges since its last sign of life, and its addresses.

    The peer has signed its addresses and their version. Whoever passes the descriptor on may withhold some of them, and
    sends their digests instead (see `dada.peer.sampling`). A descriptor with version 0 is not signed.
    """

    peer: SentId
    age: Annotated[int, Meta(ge=0, le=OLDEST)]
    addresses: Addresses = ()
    withheld: Annotated[bytes, Meta(max_length=MOST_ADDRESSES * DIGEST_SIZE)] = b""
    version: Version = 0
    signature: Signature = b""


# Longer than any list that a peer accepts: it decides itself how much of a view it takes.
Descriptors = Annotated[tuple[Descriptor, ...], Meta(max_length=256)]


class _View(_Message, frozen=True):
    view: Descriptors
    revocations: Count = 0


class ViewRequest(_View, frozen=True, tag=9):
    """Peer sampling: half of the sender's view, and the counter of its list of revoked members.

    The receiver answers with half of its own view.
    """


class ViewReply(_View, frozen=True, tag=10):
    """Peer sampling: the answer to a `ViewRequest`."""


ViewMessage = ViewRequest | ViewReply


class Follow(_Message, frozen=True, tag=11):
    """Evidence graph: whether the sender follows the receiver; the highest version counts.

    A follower asks for a statement unless its copy of the receiver's model is signed.
    """

    version: Version
    follows: bool
    wants_statement: bool = False


class FollowAck(_Message, frozen=True, tag=12):
    """Evidence graph: the last `Follow` of the receiver that the sender holds; its model's number and its sample count.

    If the receiver asked for a statement about that model, it has a digest.
    """

    version: Version
    follows: bool
    epoch: Epoch
    sequence: Count
    digest: Digest = b""
    signature: Signature = b""
    size: SampleCount = 1

    @property
    def statement(self) -> Statement:
        """The statement about the sender's model."""
        return Statement(self.epoch, self.sequence, self.digest, self.signature)


class ModelOffer(_Message, frozen=True, tag=13):
    """Evidence graph: the answer to a `StateRequest`: a model and its number of samples; no loss, no degree."""

    round: Count
    snapshot: ModelSnapshot
    size: SampleCount


class FriendsRequest(_Message, frozen=True, tag=14):
    """Neighbour search: a request for the receiver's neighbours. Only its followers get an answer."""


class FriendsReply(_Message, frozen=True, tag=15):
    """Neighbour search: a few neighbours of the sender."""

    friends: Descriptors


FriendsMessage = FriendsRequest | FriendsReply


class WitnessRequest(_Message, frozen=True, tag=18):
    """Evidence graph: names and checks of the sender's signed copies; who has others sends a `Witness`."""

    entries: Annotated[bytes, Meta(max_length=64)]


class Witness(_Message, frozen=True, tag=19):
    """Evidence graph: the sender's last signed copy of a third peer's model; an answer is answered with the own one."""

    owner: SentId
    snapshot: ModelSnapshot
    signature: Signature
    is_answer: bool = False

    @property
    def number(self) -> tuple[int, int]:
        """(epoch, sequence) of the model."""
        return self.snapshot.epoch, self.snapshot.sequence


class Equivocation(_Message, frozen=True, tag=20):
    """Evidence graph: a proof that a peer signed two different models with one number."""

    owner: SentId
    first: Statement
    second: Statement


class Certificate(_Message, frozen=True):
    """The founder of a network admits a peer, until a Unix time; 0 is for ever (see `dada.peer.signatures`)."""

    network: Digest
    peer: SentId
    expires: Count
    signature: Signature


class Revocation(_Message, frozen=True, tag=21):
    """All members that the founder of the network has excluded; the list with the highest counter counts."""

    counter: Count
    revoked: Annotated[tuple[SentId, ...], Meta(max_length=MOST_REVOKED)]
    signature: Signature


class ReleaseCheck(_Message, frozen=True, tag=30):
    """Private rows: a digest of the names of all releases that the sender holds, at each exchange of views."""

    check: Annotated[bytes, Meta(max_length=RELEASE_NAME_SIZE)]


class ReleaseNames(_Message, frozen=True, tag=31):
    """Private rows: the names of these releases, in reply to a different check, or to other names."""

    names: Annotated[bytes, Meta(max_length=MOST_RELEASES * RELEASE_NAME_SIZE)]
    is_answer: bool = False


class Release(_Message, frozen=True, tag=32):
    """Private rows: the noisy statistics that a peer released, as it signed them (see `dada.peer.releases`).

    Of a secure sum, one of its parts (see `dada.peer.secure_sums`).
    """

    owner: SentId
    body: bytes
    signature: Signature


ReleaseMessage = ReleaseCheck | ReleaseNames | Release


class CensusRecord(_Message, frozen=True):
    """The number of samples of a peer and, later, what a weaker coupling gains; signed (see `dada.peer.census`)."""

    peer: SentId
    version: Count
    size: SampleCount
    signature: Signature = b""
    gains: Annotated[tuple[Gain, ...], Meta(max_length=2)] = ()


CensusChecks = Annotated[bytes, Meta(max_length=CHECK_SIZE * MOST_RECORDS)]


class CensusSummary(_Message, frozen=True, tag=40):
    """Census: digest of the sender's records; with a check of each in answer to another digest."""

    digest: Digest
    checks: CensusChecks = b""


class CensusReply(_Message, frozen=True, tag=41):
    """Census: records that the receiver lacks; with checks, if it may have others."""

    records: Annotated[tuple[CensusRecord, ...], Meta(max_length=MOST_RECORDS)]
    checks: CensusChecks = b""


CensusMessage = CensusSummary | CensusReply


class AtomRecord(_Message, frozen=True):
    """The trees that a peer gives to the dictionary of all; signed (see `dada.peer.grove`)."""

    peer: SentId
    version: Annotated[int, Meta(ge=0, le=MOST_PLANTINGS)]
    atoms: Annotated[tuple[Annotated[bytes, Meta(max_length=LARGEST_ATOM)], ...], Meta(max_length=MOST_ATOMS)]
    signature: Signature = b""


AtomChecks = Annotated[bytes, Meta(max_length=CHECK_SIZE * MOST_GROWERS)]


class AtomRequest(_Message, frozen=True, tag=60):
    """Trees: digest of the sender's records; with a check of each, a request for those that the sender lacks."""

    digest: Digest
    checks: AtomChecks = b""


class AtomReply(_Message, frozen=True, tag=61):
    """Trees: records that the receiver lacks; with checks, if it may have others."""

    records: Annotated[tuple[AtomRecord, ...], Meta(max_length=MOST_GROWERS)]
    checks: AtomChecks = b""


AtomMessage = AtomRequest | AtomReply


class GrowthRequest(_Message, frozen=True, tag=70):
    """Boosted trees: the grower of a tree asks its pool for votes, histograms or sums (see `dada.peer.boosting`).

    `tree` has the levels that are grown, `features` those that the nodes of the next level test, `output` is the number
    of the class whose residuals they suit.
    """

    round: Count
    stage: Annotated[int, Meta(ge=0, le=2)]
    output: Annotated[int, Meta(ge=0, le=1 << 16)]
    tree: Annotated[bytes, Meta(max_length=LARGEST_BOOSTED)]
    features: Annotated[bytes, Meta(max_length=LARGEST_REQUEST)]


class GrowthReply(_Message, frozen=True, tag=71):
    """Boosted trees: the answer of a member of the pool; the form of `body` follows from the request."""

    round: Count
    body: Annotated[bytes, Meta(max_length=LARGEST_BODY)]


class SignedTree(_Message, frozen=True):
    """A boosted tree, and its grower's signature; an empty tree states that the signer takes part."""

    tree: Annotated[bytes, Meta(max_length=LARGEST_BOOSTED)]
    signature: Signature = b""


class BoostedRecord(_Message, frozen=True):
    """Boosted trees whose growing a peer has led (see `dada.peer.signed_trees`)."""

    peer: SentId
    trees: Annotated[tuple[SignedTree, ...], Meta(max_length=MOST_BOOSTED + 1)]


class BoostedRequest(_Message, frozen=True, tag=72):
    """Boosted trees: digest of the sender's records; with a check of each, a request for those that differ."""

    digest: Digest
    checks: AtomChecks = b""


class BoostedReply(_Message, frozen=True, tag=73):
    """Boosted trees: records that the receiver may lack, or new trees; with checks, if it may have others."""

    records: Annotated[tuple[BoostedRecord, ...], Meta(max_length=MOST_GROWERS)]
    checks: AtomChecks = b""


BoostedMessage = GrowthRequest | GrowthReply | BoostedRequest | BoostedReply


Message = (
    Hello | Goodbye | ModelDelta | SnapshotRequest | SnapshotReply | StateRequest | StateReply | EdgeState | EdgeAck
    | ViewRequest | ViewReply | Follow | FollowAck | ModelOffer | FriendsRequest | FriendsReply | EpochSeen
    | BlockChange | WitnessRequest | Witness | Equivocation | Revocation | ReleaseCheck | ReleaseNames | Release
    | CensusSummary | CensusReply | AtomRequest | AtomReply | GrowthRequest | GrowthReply | BoostedRequest
    | BoostedReply
)  # fmt: skip


def epoch_of(message: Message) -> int | None:
    """The sender's epoch, if a message contains it.

    >>> epoch_of(FollowAck(version=7, follows=True, epoch=3, sequence=5)), epoch_of(Goodbye())
    (3, None)
    """
    if isinstance(message, Hello | ModelChange | EdgeAck | FollowAck):
        return message.epoch
    if isinstance(message, SnapshotReply | StateReply | EdgeState | ModelOffer) and message.snapshot is not None:
        return message.snapshot.epoch
    return None


PROTOCOL_VERSION = 5
# A model of a hundred thousand coordinates fits; no message needs more.
LARGEST_MESSAGE = 1 << 20

# Groups of seven bits of the largest count.
MOST_GROUPS = 8

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class CodecError(ValueError):
    """Bytes that are not a message of this protocol."""


class ImplausibleError(ValueError):
    """A message that no sound peer sends."""


class OtherDictionaryError(ImplausibleError):
    """A model over another dictionary of trees: one of two sound peers lacks records of the other."""


# First byte of a `BlockChange`, in the place of the version, which the ends of a link have agreed on.
CHANGE_MARK = 0xC1


def encode(message: Message) -> bytes:
    """A message as bytes: the protocol version, then MessagePack.

    The most frequent message, `BlockChange`, is shorter than that: a mark instead of the version, epoch and sequence in
    groups of seven bits, then the code.

    >>> decode(encode(StateRequest(round=3)))
    StateRequest(round=3)
    >>> len(encode(BlockChange(epoch=20_000_000, sequence=300, code=b"code")))
    11
    """
    if isinstance(message, BlockChange):
        return bytes([CHANGE_MARK]) + _groups(message.epoch) + _groups(message.sequence) + message.code
    return bytes([PROTOCOL_VERSION]) + _encoder.encode(message)


def _groups(number: int) -> bytes:
    """A whole number in groups of seven bits, the lowest first; all but the last have the highest bit set."""
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def _number(data: bytes, start: int) -> tuple[int, int]:
    """The number in groups from a position on, in the fewest groups, and the position after it."""
    for end in range(start, min(start + MOST_GROUPS, len(data))):
        if data[end] < 128:
            if data[end] == 0 and end > start:
                break
            return sum((data[start + p] & 127) << 7 * p for p in range(end - start + 1)), end + 1
    raise CodecError("a number is cut off, or longer than it must be")


def _change(data: bytes) -> BlockChange:
    epoch, start = _number(data, 1)
    sequence, start = _number(data, start)
    if epoch > LARGEST_EPOCH or sequence > LARGEST_COUNT:
        raise CodecError(f"epoch {epoch} and sequence {sequence}, at most {LARGEST_EPOCH} and {LARGEST_COUNT}")
    return BlockChange(epoch, sequence, data[start:])


def decode(data: bytes) -> Message:
    """The message in some bytes, or `CodecError`."""
    if not 1 < len(data) <= LARGEST_MESSAGE:
        raise CodecError(f"a message has 2 to {LARGEST_MESSAGE} bytes, got {len(data)}")
    if data[0] == CHANGE_MARK:
        return _change(data)
    if data[0] != PROTOCOL_VERSION:
        raise CodecError(f"protocol version {data[0]}, this peer speaks {PROTOCOL_VERSION}: update the older one")
    try:
        message: Message = _decoder.decode(data[1:])
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(str(error)) from error
    if isinstance(message, BlockChange):
        raise CodecError("a change in a longer form than it must have")
    return message
