"""Every way of running the method gives the bits it gave before: see `cases`."""

import json

import pytest

from tests.pins import cases

PINNED = json.loads(cases.PINS.read_text())


def test_every_case_is_pinned():
    assert list(PINNED["cases"]) == list(cases.CASES)


@pytest.mark.parametrize("name", cases.CASES)
def test_the_same_bits_as_before(name):
    found, pinned = cases.run(name), PINNED["cases"][name]
    here = cases.made_with()
    others = {what: (was, here[what]) for what, was in PINNED["made_with"].items() if was != here[what]}
    # Other tests of the same process may have loaded a further BLAS, which no case uses.
    if set(PINNED["made_with"]["BLAS"]) <= set(here["BLAS"]):
        others.pop("BLAS", None)
    if found != pinned and others:
        pytest.skip(f"other bits, with other libraries or another processor, then and here: {others}")
    assert found == pinned
