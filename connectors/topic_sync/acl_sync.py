"""Keep access rules on the target in step with the source's, and record the rules that a flow has made there.

The records are in the topic of the offset map on the target. A rule is recorded before it is made. So after a crash in
between the record may name a rule that is not there, which does no harm, but no rule is ever there that this flow made
and does not know of.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.authorization import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    AclBinding,
    AclFilter,
    SecurityDisabled,
    code,
    create_acls,
    delete_acls,
    describe_acls,
    word,
)
from connect.kafka.cluster import Cluster, NotAuthorized
from connect.kafka.log.topic_admin import Admin
from connectors.config.connector_configs import AccessSettings
from connectors.formats.position import VERSION, KeyKind, Reader, check_version, front, text
from connectors.internal_topics import RecordKind, Records, RecordSettings, read_all_records, read_records
from connectors.topic_sync.acl_plan import AccessPlan, Names, full_rules, plan_access, topic_rules
from connectors.topic_sync.cluster_changes import CreateAcl, DeleteAcl

_CODES: Final = struct.Struct(">bbbb")  # resource type, pattern type, operation, permission


def encode_acl_key(connector: str, rule: AclBinding) -> bytes:
    codes = (
        code(RESOURCE_TYPES, rule.resource_type),
        code(PATTERN_TYPES, rule.pattern_type),
        code(OPERATIONS, rule.operation),
        code(PERMISSIONS, rule.permission),
    )
    names = (connector, rule.resource_name, rule.principal, rule.host)
    return front(KeyKind.ACL) + _CODES.pack(*codes) + b"".join(map(text, names))


def decode_acl_key(key: bytes) -> tuple[str, AclBinding]:
    """Return the connector and the rule. Raises UnknownFormat."""
    reader = Reader(key, len(front(KeyKind.ACL)))
    resource, pattern, operation, permission = reader.fixed(_CODES)
    connector, name, principal, host = (reader.text() for _ in range(4))
    reader.end()
    rule = AclBinding(
        word(RESOURCE_TYPES, resource),
        name,
        word(PATTERN_TYPES, pattern),
        principal,
        host,
        word(OPERATIONS, operation),
        word(PERMISSIONS, permission),
    )
    return connector, rule


def _check_value(value: bytes) -> bool:
    check_version(value, "access rule")
    return True


#: A record says that the rule was made.
ACLS: Final[RecordKind[AclBinding, bool]] = RecordKind(
    KeyKind.ACL, b"acls", encode_acl_key, decode_acl_key, lambda _: bytes((VERSION,)), _check_value
)


class AccessRecords:
    """The records of one connector. Errors of every method: RetriableError, SecurityError (rights are missing)."""

    def __init__(self, cluster: Cluster, admin: Admin, settings: RecordSettings) -> None:
        self._cluster = cluster
        self._admin = admin
        self._settings = settings
        self._records = Records(ACLS, cluster, admin, settings)

    async def load(self) -> frozenset[AclBinding]:
        """Return what this connector has made, whether it still exists or not."""
        return frozenset(await read_records(self._cluster, self._settings, ACLS))

    async def claim(self, rules: Collection[AclBinding]) -> None:
        """Record rules that are about to be made."""
        if rules:
            await self._settings.make_topic(self._admin)
            await self._records.store(dict.fromkeys(rules, True))

    async def forget(self, rules: Collection[AclBinding]) -> None:
        """Delete the records of rules that were deleted, or never made."""
        await self._records.store(dict.fromkeys(rules))


log = logging.getLogger(__name__)

#: Rules that get a line of their own in the log, of each kind and run.
_NAMED_AT_MOST: Final = 50
_TOPICS: Final = AclFilter(resource_type="TOPIC")


class AccessNotSynced(PermanentError):
    """Rules were refused, and those behind them were not touched."""


@dataclass(frozen=True, slots=True)
class AccessFlow:
    """What the job is about: ``flow`` as the log names it, and ``back_topic``, where the flow in the other direction
    would keep its records, on our source."""

    flow: str
    names: Names
    back_topic: str


class AccessSync:
    """Reads both clusters' rules, plans, and carries the plan out. Not for two calls at once.

    ``source`` and ``target`` are as administrators see them.
    """

    def __init__(
        self,
        settings: AccessSettings,
        flow: AccessFlow,
        source: Cluster,
        target: Cluster,
        records: AccessRecords,
    ) -> None:
        self._settings = settings
        self._flow = flow
        self._source = source
        self._target = target
        self._records = records
        self._tried: Sequence[AclBinding] | None = None  # the source's rules, unless to be tried again soon
        self._held: frozenset[AclBinding] = frozenset()  # wanted rules that the target had after the last run
        self._waits = False  # for the next run: what a look would meet has been said
        self._said: dict[str, object] = {}

    async def run(self) -> None:
        """Sync now. Raises NotAuthorized or AccessNotSynced where rules are refused, RetriableError where a cluster
        does not answer. A cluster without an authorizer is said once."""
        self._tried, self._held, self._waits = None, frozenset(), False
        try:
            rules = await describe_acls(self._source, self._asked)
            plan = await self._plan(rules)
            self._tried, self._held = rules, plan.present
            self._report(plan)
            if not self._settings.dry_run:
                await self._apply(plan)
        except SecurityDisabled as error:
            self._say_once("authorizer", logging.INFO, f"{error}; access rules are not synced")
        except RetriableError:
            self._tried = None
            raise
        except PermanentError as error:
            self._waits = not isinstance(error, AccessNotSynced)
            raise

    async def look(self) -> None:
        """Sync if the source's rules are others than before, or in full the target has lost one that is wanted: one
        request to each where not. What only somebody's doing helps against, as a missing right, is said by one look,
        and the next run asks again. Raises as ``run``."""
        if self._waits:
            return
        try:
            changed = await describe_acls(self._source, self._asked) != self._tried or await self._has_lost_some()
        except SecurityDisabled:
            return
        except PermanentError:
            self._waits = True
            raise
        if changed:
            await self.run()

    async def plan(self) -> AccessPlan:
        """What a sync would do now. Raises as ``run``, and SecurityDisabled."""
        return await self._plan(await describe_acls(self._source, self._asked))

    async def _has_lost_some(self) -> bool:
        """A connector in full deletes what it has made though another one may want it too: their records are apart, so
        none knows of the other's."""
        return self._settings.is_full and not self._held <= set(await describe_acls(self._target, self._asked))

    @property
    def _asked(self) -> AclFilter:
        return AclFilter() if self._settings.is_full else _TOPICS

    async def _plan(self, rules: Sequence[AclBinding]) -> AccessPlan:
        settings, names = self._settings, self._flow.names
        there = await describe_acls(self._target, self._asked)
        if not settings.is_full:
            return plan_access(topic_rules(rules, names), there, None)
        made = await self._records.load()
        wanted = full_rules(
            rules,
            names,
            resources=settings.resources,
            writes=settings.writes,
            mirrored=await self._mirrored(),
            mirrored_back=await self._mirrored_back(),
            made=made,
        )
        return plan_access(wanted, there, made)

    async def _mirrored(self) -> list[str]:
        topics = (await self._source.metadata(None)).topics
        return [name for name in topics if self._flow.names.takes_topic(name)]

    async def _mirrored_back(self) -> set[AclBinding]:
        topic = self._flow.back_topic
        try:
            return {rule for _, rule in await read_all_records(self._source, topic, ACLS)}
        except NotAuthorized as error:
            self._say_once(
                "back", logging.INFO, f"{error}; if the flow in the other direction syncs access rules too, it matters"
            )
            return set()

    async def _apply(self, plan: AccessPlan) -> None:
        await self._records.claim(plan.claims)
        refused: list[HeliographError] = []
        done: set[AclBinding] = set()
        for narrows, step, verb, change in (
            (True, plan.create_denies, "made", create_acls),
            (True, plan.delete_allows, "deleted", delete_acls),
            (False, plan.create_allows, "made", create_acls),
            (False, plan.delete_denies, "deleted", delete_acls),
        ):
            # Where what takes rights away was refused, nothing gives any.
            if step and (narrows or not refused):
                outcomes = await change(self._target, step)
                refused += [error for error in outcomes.values() if error is not None]
                succeeded = [rule for rule, error in outcomes.items() if error is None]
                self._name(f"access rule {verb}", succeeded)
                done.update(succeeded)
        self._held = plan.present | done.intersection((*plan.create_denies, *plan.create_allows))
        deleted = done.intersection((*plan.delete_allows, *plan.delete_denies))
        await self._records.forget(deleted | (plan.claims - done) | plan.forgets)
        if refused:
            self._refuse(refused)

    def _refuse(self, errors: Sequence[HeliographError]) -> None:
        for error in errors:
            if isinstance(error, SecurityDisabled | NotAuthorized):
                raise error  # of the cluster, and so of every rule
        for error in errors[:_NAMED_AT_MOST]:
            log.warning("%s: %s", self._flow.flow, error)
        raise AccessNotSynced(f"{len(errors)} access rules were refused; what gives rights behind them was left")

    def _report(self, plan: AccessPlan) -> None:
        """What is left out, and in a dry run what would be done; said again only when it is something else."""
        left_out = sorted(f"{rule}: {reason}" for rule, reason in plan.left_out.items())
        if left_out and self._is_news("left out", left_out):
            log.info("%s: %d access rules of the source are left out", self._flow.flow, len(left_out))
            for line in left_out[:_NAMED_AT_MOST]:
                log.debug("%s: left out, %s", self._flow.flow, line)
        if self._settings.dry_run and self._is_news("dry run", plan.changes):
            log.info("%s: dry run, %d access rules would change", self._flow.flow, len(plan.changes))
            self._name("would make", [change.binding for change in plan.changes if isinstance(change, CreateAcl)])
            self._name("would delete", [change.binding for change in plan.changes if isinstance(change, DeleteAcl)])

    def _name(self, what: str, rules: Collection[AclBinding]) -> None:
        for rule in list(rules)[:_NAMED_AT_MOST]:
            log.info("%s: %s: %s", self._flow.flow, what, rule)
        if len(rules) > _NAMED_AT_MOST:
            log.info("%s: %s: %d more", self._flow.flow, what, len(rules) - _NAMED_AT_MOST)

    def _say_once(self, about: str, level: int, line: str) -> None:
        log.log(level if self._is_news(about, line) else logging.DEBUG, "%s: %s", self._flow.flow, line)

    def _is_news(self, about: str, what: object) -> bool:
        before, self._said[about] = self._said.get(about), what
        return before != what
