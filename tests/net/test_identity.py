import os
import stat

import pytest

from dada.net.network_file import KeyFileError, TicketError, read_key, read_ticket, write_key, write_ticket
from dada.peer.messages import Descriptor

KEY = bytes(range(32))


def test_a_key_file_is_for_its_owner_alone_and_is_never_overwritten(tmp_path):
    path = tmp_path / "key"
    write_key(path, KEY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(KeyFileError, match="exists already"):
        write_key(path, bytes(32))
    assert read_key(path) == KEY
    assert os.listdir(tmp_path) == ["key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path, mode):
    path = tmp_path / "key"
    write_key(path, KEY)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"mode {mode:04o}.*chmod 600"):
        read_key(path)


@pytest.mark.parametrize("content", [b"", b"abc", b"zz" * 32, KEY, b"00" * 33])
def test_a_damaged_key_is_refused(tmp_path, content):
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match="is damaged"):
        read_key(path)


def test_a_missing_key_names_the_way_out(tmp_path):
    with pytest.raises(KeyFileError, match="dada peer init"):
        read_key(tmp_path / "key")


def test_a_ticket_is_one_line_of_plain_letters_and_digits():
    peer = Descriptor(KEY, 0, ("127.0.0.1:4040", "[::1]:4040"))
    ticket = write_ticket(peer)
    assert ticket.isalnum()
    assert ticket.islower()
    assert read_ticket(f"  {ticket}\n") == peer


def test_a_damaged_ticket_is_refused():
    ticket = write_ticket(Descriptor(KEY, 0, ("127.0.0.1:4040",)))
    with pytest.raises(TicketError, match="damaged"):
        read_ticket(ticket[:20] + ("a" if ticket[20] != "a" else "b") + ticket[21:])
    with pytest.raises(TicketError, match="damaged"):
        read_ticket(ticket[:-3])
    with pytest.raises(TicketError, match="begins with"):
        read_ticket("https://example.org")
