"""Settings of every test run: reproducible random examples, and connections to loopback addresses only."""

import ipaddress
import signal
import socket

import pytest
from hypothesis import settings

settings.register_profile("settled", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("settled")

# Workers get these files first, so that short ones are left at the end and all workers finish at about the same time.
# The first two compile different kernels.
LONGEST = (
    "tests/estimators/test_sklearn_contract.py",
    "tests/audit/test_trace.py",
    "tests/pins/test_pins.py",
    "tests/dashboard/test_page.py",
    "tests/test_docs.py",
    "tests/net/test_processes.py",
    "tests/sim/test_network.py",
    "tests/sim/test_agreement.py",
    "tests/engine/test_windows.py",
    "tests/cli/test_watching.py",
    "tests/sim/test_eclipse.py",
)


def pytest_configure(config):
    # A shell lets background processes ignore Ctrl-C; tests of Ctrl-C need the default.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv("MPLBACKEND", "Agg")
    for method in ("connect", "connect_ex"):
        patch.setattr(socket.socket, method, loopback_only(getattr(socket.socket, method)))


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        places = {config.rootpath / name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path, len(places)))


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
