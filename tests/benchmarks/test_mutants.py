"""Every mutant changes a piece of code that exists."""

import pytest

from benchmarks.mutants import MUTANTS, PACKAGE


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_that_a_mutant_replaces_occurs_once(mutant):
    assert (PACKAGE / mutant.file).read_text().count(mutant.old) == 1
