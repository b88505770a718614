"""Sixty identities that surround one peer neither fill its view nor take its weight."""

from tests.helpers.eclipse import eclipse


def test_sixty_attackers_do_not_eclipse_a_peer():
    in_view, in_weight = eclipse(attackers=60, seconds=120)
    assert in_view > 1 / 3
    assert in_weight > 1 / 2
