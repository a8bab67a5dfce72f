"""From what is wanted, what is there and what this flow has made to the steps in between (pure).

In this order no step leaves more rights than were there before or are there after it all: what forbids comes first and
goes last, what allows goes before it comes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field

from connect.core.acls import AclBinding
from connectors.access.rules import Wanted
from connectors.changes import CreateAcl, DeleteAcl


@dataclass(frozen=True, slots=True)
class AccessPlan:
    """Steps in order, each sorted.

    Args:
        claims: To be recorded as made by this flow before any is made.
        forgets: Records that stand for nothing any more.
        left_out: Rules of the source that nothing stands for on the target, with the reason.
        present: Wanted rules that the target has, whoever made them.
        others: Rules of the target that this flow neither wants nor has recorded as made by itself.
    """

    create_denies: tuple[AclBinding, ...] = ()
    delete_allows: tuple[AclBinding, ...] = ()
    create_allows: tuple[AclBinding, ...] = ()
    delete_denies: tuple[AclBinding, ...] = ()
    claims: frozenset[AclBinding] = frozenset()
    forgets: frozenset[AclBinding] = frozenset()
    left_out: Mapping[AclBinding, str] = field(default_factory=dict)
    present: frozenset[AclBinding] = frozenset()
    others: frozenset[AclBinding] = frozenset()

    @property
    def changes(self) -> tuple[CreateAcl | DeleteAcl, ...]:
        """All that would change on the target, in order."""
        return (
            *map(CreateAcl, self.create_denies),
            *map(DeleteAcl, self.delete_allows),
            *map(CreateAcl, self.create_allows),
            *map(DeleteAcl, self.delete_denies),
        )


def plan_access(wanted: Wanted, there: Collection[AclBinding], ours: Set[AclBinding] | None) -> AccessPlan:
    """The way from ``there`` to ``wanted``.

    Args:
        there: All rules of the target of the resource types concerned.
        ours: What this flow has recorded as made by itself; only that is ever deleted. None where no record is kept:
            then nothing is.
    """
    present = frozenset(there)
    create = wanted.rules - present
    made = frozenset[AclBinding]() if ours is None else frozenset(ours)
    delete = (made & present) - wanted.rules - wanted.kept
    return AccessPlan(
        create_denies=tuple(sorted(rule for rule in create if rule.is_deny)),
        delete_allows=tuple(sorted(rule for rule in delete if not rule.is_deny)),
        create_allows=tuple(sorted(rule for rule in create if not rule.is_deny)),
        delete_denies=tuple(sorted(rule for rule in delete if rule.is_deny)),
        claims=frozenset() if ours is None else frozenset(create - made),
        forgets=made - present - create,
        left_out=wanted.left_out,
        present=present & wanted.rules,
        others=present - wanted.rules - wanted.kept - made,
    )
