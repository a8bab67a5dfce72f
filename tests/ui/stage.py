"""A mirror between two brokers with its dashboard, and Debian's chromium to look at it."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.request
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize

from tests.kit.brokers import KafkaCluster
from tests.kit.mirror import FOLLOWED_GROUPS, Mirror, one_flow, with_rest
from tests.kit.processes import wait_until
from tests.kit.quotas import Quota, set_quota
from tests.kit.shapes import configure
from tests.kit.topics import make_topics

Scheme = Literal["light", "dark"]
CHROMIUM: Final = "/usr/bin/chromium"
IMAGES: Final = Path(__file__).parents[2] / "docs/images/ui"
DEADLINE_S: Final = 180.0
#: User names are roles, and passwords too.
ROLES: Final = ("admin", "operator", "viewer")
TOPICS: Final = {"orders": 4, "payments": 2}
#: The remote topics refuse larger records, which quarantines a partition.
LARGEST: Final = "max.message.bytes"
SMALL_RECORDS: Final = {LARGEST: "2000"}
#: The width of a phone, and of a laptop.
PHONE: Final[ViewportSize] = {"width": 380, "height": 780}
LAPTOP: Final[ViewportSize] = {"width": 1200, "height": 820}


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` in a thread, because Playwright has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


@dataclass
class Stage:
    """The flow us->eu: its clusters, its mirror, and what pages asked for outside the worker."""

    us: KafkaCluster
    eu: KafkaCluster
    mirror: Mirror
    properties: dict[str, str]
    browser: Browser
    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.properties["listeners"]

    def write(self, topic: str, partition: int, *values: bytes, timestamp_ms: int | None = None) -> None:
        async def send() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.us.bootstrap, max_request_size=4 << 20) as producer:
                for value in values:
                    await producer.send(topic, value, partition=partition, timestamp_ms=timestamp_ms)
                await producer.flush()

        run(send())

    def newest(self, topic: str, partition: int, count: int) -> list[bytes]:
        """The values of the last records of a target partition; control records count too."""
        found: list[bytes] = []

        async def read() -> None:
            async with AIOKafkaConsumer(bootstrap_servers=self.eu.bootstrap) as consumer:
                at = TopicPartition(topic, partition)
                consumer.assign([at])
                end = (await consumer.end_offsets([at]))[at]
                consumer.seek(at, max(end - count, 0))
                found.extend(one.value for one in (await consumer.getmany(timeout_ms=5000)).get(at, ()))

        run(read())
        return found

    def limit(self, topic: str, record_bytes: int) -> None:
        configure(self.eu.bootstrap, topic, {LARGEST: str(record_bytes)})

    def commit(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        async def store() -> None:
            async with AIOKafkaConsumer(bootstrap_servers=self.us.bootstrap, group_id=group) as consumer:
                consumer.assign([TopicPartition(*each) for each in offsets])
                await consumer.commit({TopicPartition(*each): at for each, at in offsets.items()})

        run(store())

    def join(self, cluster: KafkaCluster, topic: str, group: str) -> None:
        """Add a member that stays for half an hour: a static one does not leave when it ends."""
        settings = {"group_id": group, "group_instance_id": group, "session_timeout_ms": 1_800_000}

        async def read() -> None:
            async with AIOKafkaConsumer(
                topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", **settings
            ) as consumer:
                await consumer.getone()

        run(read())

    def ask(self, path: str, role: str = "admin", method: str = "GET") -> Any:
        token = base64.b64encode(f"{role}:{role}".encode()).decode()
        request = urllib.request.Request(
            f"{self.url}{path}", method=method, headers={"authorization": f"Basic {token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def operate(self, verb: str) -> None:
        """Pause or resume the flow."""
        self.ask(f"/us/eu/connectors/MirrorSourceConnector/{verb}", method="PUT")

    def overview(self) -> Any:
        return self.ask("/ui/api/flows")["flows"].get("us->eu", {}).get("overview")

    @contextmanager
    def quota(self, quota: Quota, bytes_per_s: int) -> Iterator[None]:
        run(set_quota(self.eu, quota, bytes_per_s))
        try:
            yield
        finally:
            run(set_quota(self.eu, quota, bytes_per_s, remove=True))

    def await_word(self, *words: str) -> Any:
        """Wait until the verdict on the flow is one of ``words``; return the overview."""

        def found() -> Any:
            seen = self.overview()
            return seen if seen and seen["verdict"]["state"] in words else None

        return wait_until(found, DEADLINE_S, f"the flow is {' or '.join(words)}")

    @contextmanager
    def page(
        self, address: str = "", role: str = "admin", scheme: Scheme = "light", size: ViewportSize | None = None
    ) -> Iterator[Page]:
        """A browser with one page of the dashboard; what it loads from elsewhere and its errors are noted."""
        context = self.browser.new_context(
            http_credentials={"username": role, "password": role}, color_scheme=scheme, viewport=size or LAPTOP
        )
        try:
            page = context.new_page()
            page.set_default_timeout(30_000)
            page.on("request", lambda request: self._requested(request.url))
            page.on("pageerror", lambda error: self.errors.append(str(error)))
            page.on("console", self._said)
            page.goto(f"{self.url}/ui{address}")
            yield page
        finally:
            context.close()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _requested(self, url: str) -> None:
        if not url.startswith((f"{self.url}/", "data:")):
            self.foreign.append(url)

    def pictures(self, name: str, address: str, text: str, role: str = "admin") -> None:
        """Take the screenshots of a page that shows ``text``: light, dark and on a phone."""
        kinds: dict[str, tuple[Scheme, ViewportSize]] = {
            "light": ("light", LAPTOP),
            "dark": ("dark", LAPTOP),
            "phone": ("light", PHONE),
        }
        for kind, (scheme, size) in kinds.items():
            with self.page(address, role, scheme, size) as page:
                page.get_by_text(text).first.wait_for()
                page.wait_for_timeout(1500)  # charts are drawn
                save(page, f"{name}-{kind}")


def save(page: Page, name: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with Image.open(BytesIO(page.screenshot())) as picture:
        picture.convert("RGB").quantize(64).save(IMAGES / f"{name}.png", optimize=True)


@contextmanager
def staged(browser: Browser, directory: Path, changes: Mapping[str, str] | None = None) -> Iterator[Stage]:
    """Start clusters and mirror, and wait until the flow runs."""
    users = directory / "users"
    users.write_text("".join(f"{each} = {each}\n" for each in ROLES))
    rest = with_rest()
    with KafkaCluster.start("us") as us, KafkaCluster.start("eu") as eu:
        run(make_topics(us.bootstrap, TOPICS))
        run(make_topics(eu.bootstrap, {f"us.{topic}": count for topic, count in TOPICS.items()}, SMALL_RECORDS))
        properties = {
            **one_flow(us.bootstrap, eu.bootstrap, "orders, payments", tasks=1),
            **rest,
            "us->eu.on.source.gap": "skip",
            "audit.enable": "true",
            **FOLLOWED_GROUPS,
            "refresh.groups.interval.seconds": "2",
            "rest.auth.basic.file": str(users),
            "rest.auth.admins": "User:admin",
            "rest.auth.operators": "User:operator",
            "rest.auth.viewers": "User:viewer",
            **(changes or {}),
        }
        with Mirror(properties, directory) as mirror:
            mirror.start()
            stage = Stage(us, eu, mirror, properties, browser)
            wait_until(lambda: _answers(stage), DEADLINE_S, "the worker answers")
            for topic, partitions in TOPICS.items():
                for partition in range(partitions):
                    stage.write(topic, partition, *(b"%d" % number for number in range(200)))
            stage.await_word("running")
            yield stage


def _answers(stage: Stage) -> bool:
    try:
        return bool(stage.overview())
    except OSError:
        time.sleep(0.2)
        return False
