"""Going on where nobody can be fenced: the target's rules refuse our transactional ids.

What is left is the brokers' own check of sequences. A successor goes on under the producer id and epoch of its
predecessor, at the next sequence: a batch that arrives late is then recognised, or refused, or refuses ours. That
holds as long as a sequence stands for the same record in both hands; where it may not, a new epoch or producer id
begins, which may double records and loses none. See decision 11.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.transactions import TransactionalIdRefused, describe_producers
from connect.wire.batch import SEQUENCE_MODULUS
from connectors.dataplane.plan import PartitionPlan, ProducerIdentity, TopicPartition
from connectors.dataplane.resumed import Resumed
from connectors.positions import Position

log = logging.getLogger(__name__)

#: The last epoch is left unused, as the fence leaves it.
_LAST_EPOCH: Final = 32765
_SETTLE_S: Final = 30.0
_AGAIN_S: Final = 0.2


class Resumes(Protocol):
    """A slice, as far as it finds places."""

    async def resume(self, plans: Sequence[PartitionPlan]) -> list[Resumed]: ...


class SecondLine:
    """Of one flow: says once that it goes on unfenced. ``id_prefix`` begins all its transactional ids."""

    def __init__(self, flow: str = "", id_prefix: str = "") -> None:
        self._flow = flow
        self._id_prefix = id_prefix
        self._told = False

    def refused(self, error: TransactionalIdRefused) -> None:
        """A transactional id was refused, and the work goes on without."""
        if self._told:
            return
        self._told = True
        log.warning(
            "%s: %s (one grant for all: WRITE and DESCRIBE on transactional ids that begin with %s). Until then "
            "nobody can be fenced: the copy goes on under running sequences, and positions are stored without "
            "transactions. Let no second mirror run beside this one",
            self._flow,
            error,
            self._id_prefix,
        )


async def prove(
    target: Cluster, slice_: Resumes, plans: Sequence[PartitionPlan], unfenced: Mapping[TopicPartition, Position]
) -> tuple[list[Resumed], dict[TopicPartition, int]]:
    """Let ``plans`` find their places; those of ``unfenced`` again and again until what their leader has of the
    predecessor is what was found.

    Returns where each goes on, and the leader's epoch of each unfenced one's producer.

    Raises:
        RetriableError: batches still arrive, or stay below the high watermark.
    """
    clock = asyncio.get_running_loop().time
    until_s = clock() + _SETTLE_S
    done: list[Resumed] = []
    epochs: dict[TopicPartition, int] = {}
    waiting = list(plans)
    while waiting:
        found = {one.plan.source: one for one in await slice_.resume(waiting)}
        late = []
        asked = [plan for plan in waiting if plan.source in unfenced]
        states = await describe_producers(target, [plan.target for plan in asked]) if asked else {}
        for plan in waiting:
            one = found[plan.source]
            if plan.source in unfenced and not one.refusal and not one.later:
                assert plan.proof is not None, "only a plan with a proof is resumed"
                wrote = plan.proof.producer
                epoch, last = states.get(plan.target, {}).get(wrote.producer_id, (wrote.epoch, -1))
                hint = last if epoch == wrote.epoch and last >= 0 else None
                if not _is_settled(one, plan, hint, clock() > until_s):
                    late.append(replace(plan, proof=replace(plan.proof, hint=hint)))
                    continue
                epochs[plan.source] = epoch
            done.append(one)
        waiting = late
        if waiting:
            if clock() > until_s:
                names = ", ".join(str(plan.target) for plan in waiting)
                raise RetriableError(f"batches of a predecessor still arrive in {names}, or wait for replicas there")
            await asyncio.sleep(_AGAIN_S)
    return done, epochs


def _is_settled(one: Resumed, plan: PartitionPlan, hint: int | None, is_late: bool) -> bool:
    """Whether all that the leader has of the predecessor was found; a doubt may be its tail below the high watermark,
    and is accepted only ``is_late``."""
    assert plan.proof is not None
    if hint is None:
        return True
    arrived = (hint + 1 - plan.proof.next_sequence) % SEQUENCE_MODULUS
    return arrived == one.surplus_records and (is_late or not one.fallback)


def go_on(
    one: Resumed, position: Position, leader_epoch: int, fresh: ProducerIdentity, *, thinned: bool, changes: bool
) -> Resumed:
    """The plan of an unfenced partition under the producer and at the sequence that lose nothing.

    Args:
        position: Where its predecessor was known to stand.
        leader_epoch: Of that producer, as the target's leader knows it now.
        fresh: A producer that nothing was written under.
        thinned: The source may have lost records since the predecessor read them.
        changes: A batch that it sent was refused for good, so what follows gets other sequences.
    """
    wrote = ProducerIdentity(position.producer_id, position.producer_epoch)
    following = (position.next_sequence + one.surplus_records) % SEQUENCE_MODULUS
    found = sum(count for _, _, count in one.runs)
    if leader_epoch > wrote.epoch:  # which shuts the predecessor out as well as a fence
        return _under(one, fresh, 0)
    if one.verified and found == one.surplus_records and not thinned and not changes:
        return _under(one, wrote, following, runs_on=True)
    if not position.transactional_id and wrote.epoch < _LAST_EPOCH:  # nobody else counts its epochs
        return _under(one, ProducerIdentity(wrote.producer_id, wrote.epoch + 1), 0)
    return _under(one, fresh, 0)


def _under(one: Resumed, producer: ProducerIdentity, next_sequence: int, *, runs_on: bool = False) -> Resumed:
    return replace(one, plan=replace(one.plan, producer=producer, next_sequence=next_sequence, runs_on=runs_on))
