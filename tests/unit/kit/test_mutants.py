"""What ``make mutants`` makes of the changes that no test notices."""

from __future__ import annotations

import pytest

from tests.kit.mutants import ROOT, WITHOUT_EFFECT, Mutant, mutants, verdict

ALIGNMENT = "connectors/offset_map/log_alignment.py"


def made(module: str) -> list[Mutant]:
    return list(mutants(module, (ROOT / module).read_text()))


@pytest.mark.parametrize("module", WITHOUT_EFFECT)
def test_each_change_without_effect_is_one_of_the_module(module: str) -> None:
    assert sorted(one.after for one in made(module) if not one.has_effect) == sorted(WITHOUT_EFFECT[module])


def test_only_changes_with_an_effect_count() -> None:
    changes = made(ALIGNMENT)
    idle = [one for one in changes if not one.has_effect]
    others = [one for one in changes if one.has_effect]
    passes, said = verdict(changes, [*idle, *others[:10]])
    assert passes and said == "112 changes, 6 without effect, 10 survived, 91% found (goal 90%)"
    assert not verdict(changes, [*idle, *others[:11]])[0], "more than a tenth of 106"
    assert verdict(idle, idle) == (True, "6 changes, 6 without effect, 0 survived, 100% found (goal 90%)")


def test_a_change_that_a_test_notices_has_an_effect() -> None:
    changes = made(ALIGNMENT)
    first, *idle = [one for one in changes if not one.has_effect]
    passes, said = verdict(changes, idle)
    assert not passes
    assert said.endswith(f"{ALIGNMENT}:{first.number} has an effect: take it out of WITHOUT_EFFECT")


def test_one_survivor_is_too_many_where_records_are_at_stake() -> None:
    changes = made("connectors/dataplane/resume.py")
    assert verdict(changes, [])[0]
    assert not verdict(changes, changes[:1])[0]
