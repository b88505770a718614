"""The ledger: recorded before it is sent, the same bytes for ever, never beyond the budget."""

import signal
import sqlite3
import subprocess
import sys

import pytest

from dada.privacy.accounting import BudgetError, LedgerError, PrivacyCost, PrivacyLedger, gaussian_mu

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
# Draws fresh noise and reports every release; the test kills it in between.
SENDER = """
import secrets, sys
from dada.privacy.accounting import PrivacyCost
from dada.privacy.accounting import PrivacyLedger
ledger = PrivacyLedger(sys.argv[1], epsilon=2.0, delta=1e-5)
print("ready", flush=True)
for number in range(200):
    body = ledger.release("me", f"release {number}", PrivacyCost(mu=0.001), lambda: secrets.token_bytes(64))
    print(number, body.hex(), flush=True)
"""


def test_a_name_returns_its_bytes_and_draws_once(tmp_path):
    drawn = []

    def make():
        drawn.append(1)
        return bytes([len(drawn)])

    for _ in range(3):
        ledger = PrivacyLedger(tmp_path / "ledger", **BUDGET)
        assert ledger.release("ann", "first", PrivacyCost(mu=0.1), make) == b"\x01"
        ledger.close()
    assert len(drawn) == 1


def test_the_budget_is_of_each_owner_and_holds_to_the_end():
    ledger, whole = PrivacyLedger(None, **BUDGET), gaussian_mu(**BUDGET)
    half = PrivacyCost(mu=whole / 2**0.5 * (1 - 1e-9))
    for owner in ("ann", "bob"):
        for name in ("one", "two"):
            assert ledger.release(owner, name, half, lambda: b"x") == b"x"

    def never():
        raise AssertionError("noise was drawn beyond the budget")

    with pytest.raises(BudgetError, match="above the budget of 1e-05"):
        ledger.release("ann", "three", PrivacyCost(mu=whole / 10), never)
    assert [entry.name for entry in ledger.entries("ann")] == ["one", "two"]
    assert ledger.spent("ann").mu == pytest.approx(whole)


def test_another_budget_cannot_replace_the_first(tmp_path):
    PrivacyLedger(tmp_path / "ledger", **BUDGET).close()
    with pytest.raises(LedgerError, match="the budget stays"):
        PrivacyLedger(tmp_path / "ledger", epsilon=20.0, delta=1e-5)


def test_nothing_is_recorded_if_the_noise_fails():
    ledger = PrivacyLedger(None, **BUDGET)
    with pytest.raises(ZeroDivisionError):
        ledger.release("ann", "first", PrivacyCost(mu=0.1), lambda: b"%d" % (1 // 0))
    assert ledger.entries() == []
    assert ledger.release("ann", "first", PrivacyCost(mu=0.1), lambda: b"x") == b"x"


@pytest.mark.parametrize(
    "change", ["DELETE FROM releases", "UPDATE releases SET mu = 0", "UPDATE budget SET delta = 1"]
)
def test_the_record_only_grows(tmp_path, change):
    ledger = PrivacyLedger(tmp_path / "ledger", **BUDGET)
    ledger.release("ann", "first", PrivacyCost(mu=0.1), lambda: b"x")
    ledger.close()
    connection = sqlite3.connect(tmp_path / "ledger")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(change)
    connection.close()


def test_damage_is_noticed(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger", **BUDGET)
    ledger.release("ann", "first", PrivacyCost(mu=0.1), lambda: b"noisy statistics")
    ledger.close()
    content = (tmp_path / "ledger").read_bytes()
    (tmp_path / "ledger").write_bytes(content.replace(b"noisy statistics", b"other statistics"))
    ledger = PrivacyLedger(tmp_path / "ledger", **BUDGET)
    with pytest.raises(LedgerError, match="damaged"):
        ledger.release("ann", "first", PrivacyCost(mu=0.1), lambda: b"x")
    ledger.close()


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "ledger").write_bytes(b"no database at all" * 100)
    with pytest.raises(LedgerError, match="cannot be read or written"):
        PrivacyLedger(tmp_path / "ledger", **BUDGET)


@pytest.mark.parametrize("received", [0, 1, 2, 5, 9])
def test_bytes_that_were_sent_survive_kill_9(tmp_path, received):
    """Whatever a killed sender has reported, a restart returns; what it stored unreported is kept as well."""
    sent = {}
    with subprocess.Popen([sys.executable, "-c", SENDER, tmp_path / "ledger"], stdout=subprocess.PIPE) as sender:
        assert sender.stdout.readline() == b"ready\n"
        for _ in range(received):
            number, body = sender.stdout.readline().split()
            sent[int(number)] = bytes.fromhex(body.decode())
        sender.send_signal(signal.SIGKILL)
        for line in sender.stdout:
            number, _, body = line.strip().partition(b" ")
            # The last line may be cut: its bytes left the process all the same.
            sent[int(number)] = body
    ledger = PrivacyLedger(tmp_path / "ledger", **BUDGET)
    stored = {entry.name for entry in ledger.entries()}
    assert {f"release {number}" for number in sent} <= stored
    for number, body in sent.items():
        again = ledger.release("me", f"release {number}", PrivacyCost(mu=0.001), lambda: b"fresh noise")
        assert again == body if number < received else again.hex().encode().startswith(body)
    ledger.close()
