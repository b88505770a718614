"""Settings of every test run: reproducible random examples, and connections to loopback addresses only."""

import ipaddress
import signal
import socket

import pytest
from hypothesis import settings

settings.register_profile("settled", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("settled")

# Tests of these files share nothing: workers take them one by one, not file by file.
APART = ("tests/pins/test_pins.py", "tests/test_docs.py", "tests/estimators/test_sklearn_contract.py")
# These cases come first: each compiles other kernels, and every later test of either worker finds them on disk.
COMPILING = (
    "classifier-default",
    "classifier-learned",
    "classifier-evidence",
    "simulation",
    "classifier-as-in-the-paper",
    "classifier-everyone",
    "classifier-goes-on",
    "command-fit",
)
# Then these files, those that wait for other processes first, so that short ones are left for the end.
LONGEST = (
    "tests/pins/test_pins.py",
    "tests/net/test_processes.py",
    "tests/dashboard/test_page.py",
    "tests/cli/test_watching.py",
    "tests/test_docs.py",
    "tests/sim/test_agreement.py",
    "tests/engine/test_windows.py",
    "tests/sim/test_network.py",
    "tests/experiments/test_lab.py",
    "tests/experiments/test_digest.py",
    "tests/sim/test_liars.py",
    "tests/estimators/test_classifier.py",
    "tests/test_results.py",
    "tests/peer/test_sampling.py",
    "tests/cli/test_demo.py",
    "tests/dashboard/test_pictures.py",
    "tests/privacy/test_audit.py",
    "tests/sim/test_eclipse.py",
    "tests/sim/test_repeatable.py",
)
# Last many short tests that workers take one by one: all workers finish at about the same time.
LAST = "tests/estimators/test_sklearn_contract.py"


def pytest_configure(config):
    # A shell lets background processes ignore Ctrl-C; tests of Ctrl-C need the default.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setenv("MPLBACKEND", "Agg")
    # Processes that tests start read compiled modules, instead of compiling the package again and again.
    patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    for method in ("connect", "connect_ex"):
        patch.setattr(socket.socket, method, loopback_only(getattr(socket.socket, method)))


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place(item.nodeid))


def place(nodeid):
    """Where a test comes in the order of a run by several workers."""
    file, _, name = nodeid.partition("::")
    if file == LAST:
        return len(LONGEST) + 1, 0
    case = name.partition("[")[2].removesuffix("]")
    first = COMPILING.index(case) if file == LONGEST[0] and case in COMPILING else len(COMPILING)
    return LONGEST.index(file) if file in LONGEST else len(LONGEST), first


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return nodeid if file in APART else file

    return ByFile(config, log)


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
