import pytest
from hypothesis import given
from hypothesis import strategies as st

from dada.net.transport import HEADER, FrameError, FrameReader, Kind, frame
from dada.peer.messages import LARGEST_MESSAGE

frames = st.lists(st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=200)), max_size=8)


@given(frames, st.lists(st.integers(1, 50)))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(sent, cuts):
    stream = b"".join(frame(kind, content) for kind, content in sent)
    reader, received, start = FrameReader(largest=200), [], 0
    for size in [*cuts, len(stream)]:
        reader.feed(stream[start : start + size])
        start += size
        while (one := reader.next()) is not None:
            received.append(one)
    reader.end()
    assert received == sent


def test_a_frame_that_is_too_large_is_refused_before_its_content_is_sent():
    reader = FrameReader(largest=10)
    reader.feed(HEADER.pack(11, Kind.MESSAGE))
    with pytest.raises(FrameError, match="announces 11 bytes, at most 10"):
        reader.next()


def test_a_stream_that_ends_inside_a_frame_is_noticed():
    reader = FrameReader()
    reader.feed(frame(Kind.MESSAGE, b"abc")[:-1])
    assert reader.next() is None
    with pytest.raises(FrameError, match="ended inside a frame"):
        reader.end()


@given(st.binary(max_size=300))
def test_garbage_gives_frames_or_an_error_and_never_more_than_was_sent(data):
    reader = FrameReader(largest=64)
    reader.feed(data)
    try:
        while (one := reader.next()) is not None:
            assert len(one[1]) <= 64
    except FrameError:
        pass


def test_an_unknown_kind_is_refused():
    reader = FrameReader()
    reader.feed(HEADER.pack(0, 200))
    with pytest.raises(FrameError, match="kind 200"):
        reader.next()


def test_a_peer_never_sends_what_it_would_refuse():
    with pytest.raises(FrameError, match=str(LARGEST_MESSAGE)):
        frame(Kind.MESSAGE, bytes(LARGEST_MESSAGE + 1))
