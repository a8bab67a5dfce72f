"""A compacted topic that a connector writes into: made on the target, tried again until it is there, kept small."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from connect.core.errors import HeliographError, RetriableError
from connect.core.model import CLEANED_SOON, NewTopic
from connect.kafka import topic_configs
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.topic_configs import ConfigSource
from connect.kafka.topiclog import make_topic

log = logging.getLogger(__name__)


async def correct_settings(cluster: Cluster, topics: Collection[str]) -> None:
    """Set CLEANED_SOON on topics where a key was left at the cluster's default. A missing right is logged.

    Raises RetriableError: no broker answers.
    """
    wanted: dict[str, dict[str, str | None]] = {}
    for topic, configs in (await topic_configs.describe(cluster, topics)).items():
        if isinstance(configs, HeliographError):
            # A broker may not have heard yet of a topic that was created just now, with these settings.
            level = logging.DEBUG if isinstance(configs, RetriableError) else logging.WARNING
            log.log(level, "%s; its segments may be cleaned late", configs)
            continue
        keys = CLEANED_SOON.items() & {(key, CLEANED_SOON.get(key)) for key in configs}
        inherited = {key: value for key, value in keys if configs[key].source is not ConfigSource.TOPIC}
        if changed := {key: value for key, value in inherited.items() if configs[key].value != value}:
            wanted[topic] = dict(changed)
    for topic, error in (await topic_configs.alter(cluster, wanted)).items():
        named = ", ".join(f"{key}={value}" for key, value in sorted(wanted[topic].items()))
        if error is None:
            log.info("cluster %s: set %s on topic %s, so that it stays small", cluster.name, named, topic)
        else:
            log.warning("%s; without %s it may become large, and starts take longer", error, named)


async def keep_making(admin: Admin, topic: NewTopic, tried: asyncio.Event | None = None) -> None:
    """Make ``topic`` where it is missing; ``tried`` is set after the first attempt.

    What may pass is tried again until it has: Java tries once, and a target that is down at that moment then has the
    topic made by a broker's ``auto.create.topics.enable``, not compacted.
    """
    try:
        if await make_topic(admin, topic, tried=tried):
            log.info("topic %s was made", topic.name)
    except HeliographError as error:
        log.error("%s", error)
