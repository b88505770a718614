"""What a peer remembers of others is bounded, and versions never come back."""

from dada.peer.edges import VERSIONS_PER_LIFE, Offences, Sizes, Versions


def test_no_version_comes_twice_in_a_life_or_in_two():
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


def test_patience_ends_and_is_not_restored_by_more_offences():
    offences = Offences(patience=3, most_peers=5)
    assert [offences.add(b"liar") for _ in range(5)] == [False, False, True, True, True]
    assert offences.is_ignored(b"liar")
    assert not offences.is_ignored(b"ann")


def test_offenders_are_bounded_in_number():
    offences = Offences(patience=2, most_peers=5)
    for k in range(100):
        offences.add(bytes([k]))
    assert len(offences) == 5


def test_sizes_of_a_few_liars_do_not_count():
    sizes = Sizes(distrust=0.2, most_peers=100)
    for k in range(18):
        sizes.note(bytes([k]), 10 + k % 5)
    for k in range(2):
        sizes.note(b"liar" + bytes([k]), 10**9)
    assert sizes.largest == 14


def test_without_distrust_the_largest_size_is_believed():
    sizes = Sizes(distrust=0.0, most_peers=100)
    sizes.note(b"ann", 7)
    sizes.note(b"bob", 3)
    assert sizes.largest == 7
    sizes.note(b"ann", 2)
    assert sizes.largest == 3


def test_sizes_are_bounded_in_number():
    sizes = Sizes(distrust=0.0, most_peers=5)
    for k in range(100):
        sizes.note(bytes([k]), 200 - k)
    assert len(sizes) == 5
    assert sizes.largest == 105
