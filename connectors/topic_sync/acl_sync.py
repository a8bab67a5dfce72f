"""Keep ACLs on the target in step with the source's. A record in the topic of the offset map names each ACL before it
is created: one too many does no harm, but this flow knows of every ACL that it created."""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from connect.core.audit import state_changed
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
    describe_acls,
    word,
)
from connect.kafka.cluster import Cluster, NotAuthorized
from connect.kafka.log.topic_admin import Admin
from connectors.config.connector_configs import AccessSettings
from connectors.formats.position import KeyKind, Reader, text
from connectors.internal_topics import RecordKind, Records, read_all_records
from connectors.topic_sync.acl_plan import AccessPlan, Names, full_rules, plan_access, topic_rules
from connectors.topic_sync.cluster_changes import CreateAcl, DeleteAcl

_CODES: Final = struct.Struct(">bbbb")  # resource type, pattern type, operation, permission


def _pack_key(connector: str, rule: AclBinding) -> bytes:
    codes = (
        code(RESOURCE_TYPES, rule.resource_type),
        code(PATTERN_TYPES, rule.pattern_type),
        code(OPERATIONS, rule.operation),
        code(PERMISSIONS, rule.permission),
    )
    names = (connector, rule.resource_name, rule.principal, rule.host)
    return _CODES.pack(*codes) + b"".join(map(text, names))


def _take_key(reader: Reader) -> tuple[str, AclBinding]:
    resource, pattern, operation, permission = reader.fixed(_CODES)
    connector, name, principal, host = (reader.text() for _ in range(4))
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


#: A record says that the ACL was created.
ACLS: Final[RecordKind[AclBinding, bool]] = RecordKind(
    KeyKind.ACL, b"acls", _pack_key, _take_key, lambda _: b"", lambda _: True
)


log = logging.getLogger(__name__)

#: How many ACLs of each kind are logged in a run.
_NAMED_AT_MOST: Final = 50
_TOPICS: Final = AclFilter(resource_type="TOPIC")


class AccessNotSynced(PermanentError):
    """ACLs were refused, so later ones were not changed."""


@dataclass(frozen=True, slots=True)
class AccessFlow:
    """What the job works on: ``flow`` is its name in the log; ``back_topic`` is where the reverse flow would keep its
    records, on our source."""

    flow: str
    names: Names
    back_topic: str


class AccessSync:
    """Reads both clusters' ACLs, plans, and applies the plan. Calls must not overlap. ``source`` and ``target`` connect
    as administrators; ``admin`` changes the target."""

    def __init__(
        self,
        settings: AccessSettings,
        flow: AccessFlow,
        source: Cluster,
        target: Cluster,
        admin: Admin,
        records: Records[AclBinding, bool],
    ) -> None:
        self._settings, self._flow, self._source, self._target = settings, flow, source, target
        self._admin, self._records = admin, records
        self._tried: Sequence[AclBinding] | None = None  # the source's ACLs, unless a retry is due soon
        self._held: frozenset[AclBinding] = frozenset()  # wanted ACLs that the target had after the last run
        self._waits = False  # for the next run: what prevents a sync has been logged
        self._said: dict[str, object] = {}

    async def run(self) -> None:
        """Sync now. Raises NotAuthorized or AccessNotSynced if ACLs are refused, RetriableError if a cluster does not
        answer. A cluster without an authorizer is logged once."""
        self._tried, self._held, self._waits = None, frozenset(), False
        try:
            rules = await describe_acls(self._source, self._asked)
            plan = await self._plan(rules)
            self._tried, self._held = rules, plan.present
            self._report(plan)
            if not self._settings.dry_run:
                await self._apply(plan)
        except SecurityDisabled as error:
            self._say_once("authorizer", f"{error}; ACLs are not synced")
        except RetriableError:
            self._tried = None
            raise
        except PermanentError as error:
            self._waits = not isinstance(error, AccessNotSynced)
            raise

    async def look(self) -> None:
        """Sync if the source's ACLs have changed or, in full mode, the target has lost one that is wanted; otherwise
        send one request to each. An error that needs an operator, such as a missing right, is raised once; then only
        the next run tries again. Raises the errors of ``run``."""
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
        """Return what a sync would do now. Raises the errors of ``run``, and SecurityDisabled."""
        return await self._plan(await describe_acls(self._source, self._asked))

    async def _has_lost_some(self) -> bool:
        """Whether a wanted ACL is missing: in full mode another connector deletes what it has created even if we want
        it too, because each has its own records."""
        return self._settings.is_full and not self._held <= set(await describe_acls(self._target, self._asked))

    @property
    def _asked(self) -> AclFilter:
        return AclFilter() if self._settings.is_full else _TOPICS

    async def _plan(self, rules: Sequence[AclBinding]) -> AccessPlan:
        settings, names = self._settings, self._flow.names
        there = await describe_acls(self._target, self._asked)
        if not settings.is_full:
            return plan_access(topic_rules(rules, names), there, None)
        made = frozenset(await self._records.read())  # including what no longer exists
        wanted = full_rules(
            rules,
            names,
            resources=settings.resources,
            writes=settings.writes,
            mirrored=[name for name in (await self._source.metadata(None)).topics if names.takes_topic(name)],
            mirrored_back=await self._mirrored_back(),
            made=made,
        )
        return plan_access(wanted, there, made)

    async def _mirrored_back(self) -> set[AclBinding]:
        topic = self._flow.back_topic
        try:
            return {rule for _, rule in await read_all_records(self._source, topic, ACLS)}
        except NotAuthorized as error:
            self._say_once("back", f"{error}; this matters if the flow in the other direction also syncs ACLs")
            return set()

    async def _apply(self, plan: AccessPlan) -> None:
        if plan.claims:
            await self._records.make_topic()
            await self._records.store(dict.fromkeys(plan.claims, True))
        refused: list[HeliographError] = []
        done: set[AclBinding] = set()
        for narrows, step, verb, change in (
            (True, plan.create_denies, "created", self._admin.create_acls),
            (True, plan.delete_allows, "deleted", self._admin.delete_acls),
            (False, plan.create_allows, "created", self._admin.create_acls),
            (False, plan.delete_denies, "deleted", self._admin.delete_acls),
        ):
            # Once a step that removes rights was refused, no step grants any.
            if step and (narrows or not refused):
                outcomes = await change(step)
                refused += [error for error in outcomes.values() if error is not None]
                succeeded = [rule for rule, error in outcomes.items() if error is None]
                if succeeded:
                    rules = ", ".join(map(str, succeeded[:_NAMED_AT_MOST]))
                    said, about = "%s: %d ACLs %s: %s", (self._flow.flow, len(succeeded), verb, rules)
                    state_changed(log, logging.INFO, f"acls-{verb}", self._flow.flow, said, *about)
                done.update(succeeded)
        self._held = plan.present | done.intersection((*plan.create_denies, *plan.create_allows))
        deleted = done.intersection((*plan.delete_allows, *plan.delete_denies))
        await self._records.store(dict.fromkeys(deleted | (plan.claims - done) | plan.forgets))
        if refused:
            self._refuse(refused)

    def _refuse(self, errors: Sequence[HeliographError]) -> None:
        for error in errors:
            if isinstance(error, SecurityDisabled | NotAuthorized):
                raise error  # it concerns the cluster, and so every ACL
        for error in errors[:_NAMED_AT_MOST]:
            log.warning("%s: ACL was refused: %s", self._flow.flow, error)
        raise AccessNotSynced(f"{len(errors)} ACLs were refused, so no further rights were granted")

    def _report(self, plan: AccessPlan) -> None:
        """Log what is left out, and in a dry run what would be done; only if that has changed."""
        left_out = sorted(f"{rule}: {reason}" for rule, reason in plan.left_out.items())
        if left_out and self._is_news("left out", left_out):
            log.info("%s: %d ACLs of the source are left out", self._flow.flow, len(left_out))
            for line in left_out[:_NAMED_AT_MOST]:
                log.debug("%s: left out, %s", self._flow.flow, line)
        if self._settings.dry_run and self._is_news("dry run", plan.changes):
            log.info("%s: dry run, %d ACLs would change", self._flow.flow, len(plan.changes))
            self._name("would create", [change.binding for change in plan.changes if isinstance(change, CreateAcl)])
            self._name("would delete", [change.binding for change in plan.changes if isinstance(change, DeleteAcl)])

    def _name(self, what: str, rules: Collection[AclBinding]) -> None:
        for rule in list(rules)[:_NAMED_AT_MOST]:
            log.info("%s: %s: %s", self._flow.flow, what, rule)
        if len(rules) > _NAMED_AT_MOST:
            log.info("%s: %s: %d more", self._flow.flow, what, len(rules) - _NAMED_AT_MOST)

    def _say_once(self, about: str, line: str) -> None:
        log.log(logging.INFO if self._is_news(about, line) else logging.DEBUG, "%s: %s", self._flow.flow, line)

    def _is_news(self, about: str, what: object) -> bool:
        before, self._said[about] = self._said.get(about), what
        return before != what
