"""Steps to the ACLs that are wanted, and the records of those that were created."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.kafka.authorization import OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES, AclBinding
from connectors.formats.position import KeyKind, UnknownFormat, decode_kind
from connectors.topic_sync.acl_plan import AccessPlan, WantedAcls, plan_access
from connectors.topic_sync.acl_sync import ACLS
from connectors.topic_sync.cluster_changes import CreateAcl, DeleteAcl

rules = st.sets(
    st.builds(
        AclBinding,
        st.just("TOPIC"),
        st.sampled_from(("us.a", "us.b")),
        st.just("LITERAL"),
        st.sampled_from(("User:ann", "User:bob")),
        st.just("*"),
        st.just("READ"),
        st.sampled_from(("ALLOW", "DENY")),
    )
)


def states(plan: AccessPlan, there: set[AclBinding]) -> list[set[AclBinding]]:
    """The target's rules before the first change and after each."""
    found = [set(there)]
    for change in plan.changes:
        found.append(found[-1] | {change.binding} if isinstance(change, CreateAcl) else found[-1] - {change.binding})
    return found


def rights(held: set[AclBinding]) -> set[tuple[str, str]]:
    def who(permission: str) -> set[tuple[str, str]]:
        return {(rule.principal, rule.resource_name) for rule in held if rule.permission == permission}

    return who("ALLOW") - who("DENY")


@given(rules, rules, rules, rules)
def test_only_what_is_ours_goes(
    wanted: set[AclBinding], kept: set[AclBinding], there: set[AclBinding], ours: set[AclBinding]
) -> None:
    plan = plan_access(WantedAcls(wanted, kept), there, ours)
    deleted = {change.binding for change in plan.changes if isinstance(change, DeleteAcl)}
    assert deleted == (ours & there) - wanted - kept
    assert states(plan, there)[-1] == (there | wanted) - deleted
    assert not any(isinstance(change, DeleteAcl) for change in plan_access(WantedAcls(wanted), there, None).changes)


@given(rules, rules, rules)
def test_no_step_widens(wanted: set[AclBinding], there: set[AclBinding], ours: set[AclBinding]) -> None:
    steps = states(plan_access(WantedAcls(wanted), there, ours), there)
    for held in steps:
        assert rights(held) <= rights(steps[0]) or rights(held) <= rights(steps[-1])


@given(rules, rules, rules, st.data())
def test_a_crash_at_any_step_leaves_nothing_unrecorded_and_the_next_run_converges(
    wanted: set[AclBinding], there: set[AclBinding], ours: set[AclBinding], data: st.DataObject
) -> None:
    first = plan_access(WantedAcls(wanted), there, ours)
    held = data.draw(st.sampled_from(states(first, there)))
    recorded = ours | first.claims
    assert held - there <= recorded
    later = plan_access(WantedAcls(wanted), held, recorded)
    end = states(later, held)[-1]
    recorded = (recorded | later.claims) - later.forgets - set(later.delete_allows) - set(later.delete_denies)
    assert end == states(first, there)[-1]
    assert recorded <= end, "what is gone is forgotten"
    others = frozenset(end) - wanted - recorded
    nothing = AccessPlan(present=frozenset(wanted), others=others)
    assert plan_access(WantedAcls(wanted), end, recorded) == nothing, "and then there is nothing to do"


RULE = AclBinding("TOPIC", "us.o", "PREFIXED", "User:bob", "*", "READ", "DENY")
BYTES = b"\x01\x05\x02\x04\x03\x02\x00\x01C\x00\x04us.o\x00\x08User:bob\x00\x01*"


def test_the_bytes() -> None:
    assert ACLS.encode_key("C", RULE) == BYTES
    assert decode_kind(BYTES) is KeyKind.ACL


@pytest.mark.parametrize("raw", [BYTES[:-1], BYTES + b"x", BYTES[:5]])
def test_what_is_cut_or_too_long_is_refused(raw: bytes) -> None:
    with pytest.raises(UnknownFormat):
        ACLS.decode_key(raw)


def of(words: dict[int, str]) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(words.values()))


@given(
    st.tuples(
        st.text(max_size=9),
        st.builds(
            AclBinding,
            of(RESOURCE_TYPES),
            st.text(max_size=9),
            of(PATTERN_TYPES),
            st.text(max_size=9),
            st.text(max_size=9),
            of(OPERATIONS),
            of(PERMISSIONS),
        ),
    )
)
def test_there_and_back(key: tuple[str, AclBinding]) -> None:
    assert ACLS.decode_key(ACLS.encode_key(*key)) == key
