"""Bytes that a fuzzer found, and bytes at random: refused or understood, and the peer goes on."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada.net.transport import FrameReader, Kind, frame
from dada.peer.messages import LARGEST_MESSAGE, PROTOCOL_VERSION
from tests.helpers.wire_fuzz import feed

CORPUS = sorted((Path(__file__).parents[1] / "peer" / "corpus").iterdir())

pytestmark = pytest.mark.usefixtures("compiled_kernels")


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.name)
def test_what_a_fuzzer_found_breaks_nothing(file):
    feed(file.read_bytes())


def test_the_corpus_speaks_the_present_version():
    reader = FrameReader(LARGEST_MESSAGE)
    reader.feed((CORPUS[0].parent / "views-signed").read_bytes()[1:])
    _, content = reader.next()
    assert content[0] == PROTOCOL_VERSION, "change the version in all files of the corpus"


@given(st.data())
def test_known_bytes_with_some_changed_break_nothing(data):
    content = bytearray(data.draw(st.sampled_from(CORPUS)).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    feed(bytes(content))


@given(st.lists(st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=80)), max_size=6))
def test_frames_of_random_bytes_break_nothing(frames):
    feed(b"\x7f" + b"".join(frame(kind, content) for kind, content in frames))
