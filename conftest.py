"""What every test run shares: settled chance, a kernel cache of its own, no way out to the network."""

import fcntl
import hashlib
import ipaddress
import itertools
import shutil
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent

settings.register_profile("settled", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("settled")


def pytest_configure(config):
    # A shell starts what it runs in the background deaf to Ctrl-C; tests of Ctrl-C must hear it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv("MPLBACKEND", "Agg")
    for method in ("connect", "connect_ex"):
        patch.setattr(socket.socket, method, loopback_only(getattr(socket.socket, method)))
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    only_hands_out_tests = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not only_hands_out_tests:
        folder, lock = claim_kernel_cache(int(worker.removeprefix("gw")))
        config.add_cleanup(lock.close)
        patch.setenv("NUMBA_CACHE_DIR", str(folder))


def loopback_only(connect):
    def guarded(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(address[0]):
            raise PermissionError(f"tests may reach loopback addresses only, not {address}")
        return connect(self, address)

    return guarded


def is_loopback(host):
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def claim_kernel_cache(favourite):
    """Give a folder for compiled kernels that no other process uses while the returned lock stays open.

    The search starts at the favourite number, under which the same worker finds what it compiled last time.

    Two processes that fill one Numba cache can leave an index that points to the wrong code. And Numba sees a
    change of the file a kernel stands in, not of the files whose kernels it calls: hence the digest.
    """
    digest = hashlib.sha256()
    for package in ("core", "engine"):
        for source in sorted((ROOT / "src" / "dada" / package).rglob("*.py")):
            digest.update(source.read_bytes())
    for number in itertools.count(favourite):
        slot = ROOT / ".pytest_cache" / "kernels" / str(number)
        slot.mkdir(parents=True, exist_ok=True)
        lock = (slot / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            lock.close()
    folder = slot / digest.hexdigest()[:16]
    for other in slot.iterdir():
        if other.is_dir() and other != folder:
            shutil.rmtree(other)
    return folder, lock
