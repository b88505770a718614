"""A peer's memory of others is bounded, and versions never repeat."""

from dada.peer.edges import VERSIONS_PER_LIFE, Sizes, Versions
from dada.peer.peer import Offences


def test_no_version_repeats_within_a_life_or_across_lives():
    versions = Versions()
    given = []
    for epoch in (1, 2):
        versions.begin(epoch)
        given += [versions.after(known) for known in (0, 0, 7, VERSIONS_PER_LIFE - 1, 0)]
    assert len(set(given)) == len(given)
    assert max(given[:5]) < min(given[5:])


def test_a_version_is_above_the_one_it_replaces():
    versions = Versions()
    versions.begin(1)
    assert versions.after(10**12) == 10**12 + 1


def test_an_ignored_peer_stays_ignored():
    offences = Offences(patience=3, most_peers=5)
    assert [offences.add(b"liar") for _ in range(5)] == [False, False, True, True, True]
    assert offences.is_ignored(b"liar")
    assert not offences.is_ignored(b"ann")


def test_offenders_are_bounded_in_number():
    offences = Offences(patience=2, most_peers=5)
    for k in range(100):
        offences.add(bytes([k]))
    assert len(offences) == 5


def test_the_largest_sizes_are_ignored_as_far_as_they_are_distrusted():
    sizes = Sizes(own=1, distrust=0.2)
    for k in range(18):
        sizes.add(bytes([k]), 10 + k % 5)
    for k in range(2):
        sizes.add(b"liar" + bytes([k]), 10**9)
    assert sizes.largest == 14


def test_without_distrust_the_largest_size_is_believed():
    sizes = Sizes(own=1, distrust=0.0)
    sizes.add(b"ann", 7)
    sizes.add(b"bob", 3)
    assert sizes.largest == 7
    sizes.add(b"ann", 2)
    assert sizes.largest == 3


def test_sizes_are_bounded_in_number():
    sizes = Sizes(own=1, distrust=0.0, most_peers=5)
    for k in range(100):
        sizes.add(bytes([k]), 200 - k)
    assert len(sizes) == 5
    assert sizes.largest == 105


def test_a_majority_of_liars_cannot_exceed_the_bound_of_the_network():
    sizes = Sizes(own=3, distrust=0.2, most_samples=15)
    for number in range(20):
        sizes.add(b"%d" % number, 10)
    for number in range(60):
        sizes.add(b"liar %d" % number, 10**6)
    assert sizes.largest == 15
    assert sizes.confidence == 0.2


def test_a_minority_of_liars_cannot_raise_the_largest_size_beyond_twice_the_median():
    sizes = Sizes(own=10, distrust=0.2)
    for k in range(10):
        sizes.add(b"peer%d" % k, 10**6 if k < 4 else 12)
    assert sizes.largest == 24
