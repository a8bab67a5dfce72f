"""``heliograph mirror -f``: run a Strimzi ``KafkaMirrorMaker2`` resource in a worker of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import javaproperties

from connect.cli.console import EXIT_NOT_STARTED, EXIT_OK, describe, imported, stop_signals
from connect.cli.daemons.connect_distributed import EXIT_WITHIN_S
from connect.cli.daemons.connect_mirror_maker import START_DELAYS_S, NotStarted, log_summaries
from connect.cli.tables import show_json
from connect.core.config.properties import MAX_FILE_BYTES
from connect.core.config.security_settings import HIDDEN, is_secret
from connect.core.config.worker_config import WorkerConfig
from connect.core.errors import ConfigError, HeliographError, PermanentError, RetriableError
from connect.core.model import TargetState
from connect.core.wording import printable
from connect.kafka.concurrency import Pauses, Scope, is_set_within, unless, wall_ms
from connect.kafka.tracing import configure_tracing
from connectors.config.client_config import flow_clients, located_client
from connectors.config.connector_configs import checkpoint_settings, source_settings
from connectors.config.ignored_keys import connector_notices
from connectors.formats.types import FlowName
from connectors.strimzi.resource import chosen, read_documents
from connectors.strimzi.security import keys_in
from connectors.strimzi.translation import TranslatedResource, WantedConnector, translate

if TYPE_CHECKING:
    from connect.runtime.distributed_worker import DistributedWorker

log = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
_SOURCE: Final = ".MirrorSourceConnector"


def checked_connectors(found: TranslatedResource, worker: WorkerConfig) -> None:
    """Check the settings of the connectors, key stores included, before anything is started. Raises ConfigError, with
    its line in the resource, if one is invalid."""
    for wanted in found.connectors:
        try:
            config = worker.transformer.transform(wanted.config)
            if wanted.config["connector.class"].endswith("MirrorSourceConnector"):
                settings, own = source_settings(config, worker.props), {"client.id": "", **worker.props}
                source, target = settings.source_alias, settings.target_alias
                locate = partial(located_client, config)
                flow_clients(settings.flow, config, own, source=source, target=target, locate=locate)
            elif wanted.config["connector.class"].endswith("MirrorCheckpointConnector"):
                checkpoint_settings(config)
        except ConfigError as error:
            raise found.located(error, wanted) from None


def plugin_key_warnings(found: TranslatedResource) -> Iterator[ConfigError]:
    """Yield a warning, with its line in the resource, for each key that a transform, a predicate or a converter does
    not use, and that the notices of the resource do not have."""
    from connect.runtime.plugins.ineffective_plugin_keys import ineffective_plugin_keys
    from connect.runtime.plugins.plugin_registry import Plugins

    plugins = Plugins.discover()
    for wanted in found.connectors:
        reported = {one.key for one in connector_notices(wanted.config)}
        for text in ineffective_plugin_keys(wanted.config, plugins):
            if (key := text.partition(" ")[0]) not in reported:
                yield found.located(ConfigError(text, key), wanted)


async def run_until_signal(found: TranslatedResource, config: WorkerConfig) -> None:
    """Run a resource until SIGTERM or Ctrl-C. A start is retried while a cluster does not answer. Raises NotStarted if
    starting failed and a retry would not help, HeliographError that ended the worker."""
    async with stop_signals(exit_within_s=EXIT_WITHIN_S) as stop:
        pauses = Pauses(*START_DELAYS_S)
        if await imported(stop, "connect.cli.daemons.worker_process", plugins=True):
            for warning in plugin_key_warnings(found):
                log.warning("%s", warning)
        while not stop.is_set():
            node, delay_s = _ResourceNode(found, config), pauses.next_s()
            try:
                await unless(stop, node.start(), "start")
                if not stop.is_set():
                    await unless(stop, node.ended(), "work")
                return
            except RetriableError as error:
                log.warning("%s; retrying in %.0f s", error, delay_s)
            except PermanentError as error:
                if node.tasks:
                    raise
                said = found.located(config.located(error)) if isinstance(error, ConfigError) else error
                raise NotStarted(said) from error
            finally:
                await node.stop()
            await is_set_within(stop, delay_s)


class _ResourceNode:
    """A worker, and the tasks of a leader for the resource. Needs a running loop."""

    def __init__(self, found: TranslatedResource, config: WorkerConfig) -> None:
        from connect.cli.daemons.worker_process import WorkerNode

        self._found = found
        self._elected = asyncio.Event()
        self._node = WorkerNode(config, elected=self._elected.set)
        self._scope = Scope(found.name)
        #: Those of a leader, once the worker has started.
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._node.start()
        self.tasks = [
            self._scope.spawn(self._see_to_connectors(), f"connectors of {self._found.name}"),
            self._scope.spawn(self._report(), f"speed of {self._found.name}"),
        ]

    async def ended(self) -> None:
        """Wait until the worker ends; raise its error, or that of a task, which never ends without one."""
        async with Scope(self._found.name) as scope:
            worker = scope.spawn(self._node.worker.ended(), f"end of {self._found.name}")
            done, _ = await asyncio.wait({worker, *self.tasks}, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()

    async def stop(self) -> None:
        await self._scope.close()
        await self._node.stop()

    async def _see_to_connectors(self) -> None:
        """Store what differs from the resource, each time this worker becomes leader."""
        while True:
            await self._elected.wait()
            self._elected.clear()
            worker = self._node.worker
            for wanted in self._found.connectors:
                await see_to(worker, wanted)
            names = {each.name for each in self._found.connectors}
            for name in [one for one in worker.core.snapshot.connectors() if one not in names]:
                log.warning("connector %s is not in the resource; to end it, use heliograph connectors delete", name)

    async def _report(self) -> None:
        """Log what is copied here."""
        host = self._node.host
        sources = {each.name: each.config for each in self._found.connectors if each.name.endswith(_SOURCE)}
        ends = ("source.cluster.alias", "target.cluster.alias")
        flows = {name: FlowName(*(config[end] for end in ends)) for name, config in sources.items()}
        await log_summaries(
            lambda: [host.progress(name, flow, wall_ms()) for name, flow in flows.items()],
            lambda: [host.contact(name) for name in flows],
        )


async def see_to(worker: DistributedWorker, wanted: WantedConnector) -> None:
    """Store the config of a connector, and pause or stop it, with retries until it is refused or another worker leads.
    A connector that was stopped is not started even if the resource wants it running, because a failover may have
    stopped it, and a new leader must not undo that."""
    while worker.core.is_leader:
        try:
            await _store(worker, wanted)
            return
        except PermanentError as error:
            log.error("%s was not set up as in the resource: %s", wanted.name, error)
            return
        except HeliographError as error:
            log.warning("%s is not set up as in the resource yet: %s", wanted.name, error)
            await asyncio.sleep(_AGAIN_S)


async def _store(worker: DistributedWorker, wanted: WantedConnector) -> None:
    snapshot = worker.core.snapshot
    is_new = snapshot.connector_config(wanted.name) is None
    if snapshot.connector_config(wanted.name) != wanted.config:
        state = wanted.state if is_new else None
        worker.herder.logs_ignored = False
        await worker.herder.put_connector(wanted.name, wanted.config, state, allow_replace=True)
        log.info("%s: %s", wanted.name, "created" if is_new else "config replaced by the resource's")
    if is_new or wanted.state is None:
        return
    state = snapshot.target_state(wanted.name)
    if state is not wanted.state and wanted.state is TargetState.STARTED:
        text = "%s is %s, but the resource says running; run heliograph connectors resume"
        log.warning(text, wanted.name, state.value)
    elif state is not wanted.state:
        await worker.herder.set_target_state(wanted.name, wanted.state)
        log.info("%s: %s", wanted.name, wanted.state.value.lower())


_STDIN: Final = "-"
_KEY_MARK: Final = re.compile(r"\\([:=#!])")
_JAAS: Final = "sasl.jaas.config"
_JAAS_OPTION: Final = re.compile(r'(?P<name>[\w.-]+)\s*=\s*(?P<value>"(?:[^"\\]|\\.)*"|[^\s;"]+)')
_REFERENCES: Final = re.compile(r"(\$\{[^}]*\}\s*)+")
#: Parameters of other providers, which may be credentials.
_PARAMETER: Final = re.compile(r"config\.providers\.(?!strimzi)[^.]+\.param\.")
_USER_INFO: Final = re.compile(r"(https?://)[^/@\s]+@")
#: Their names in REST.
_STATES: Final = {TargetState.STARTED: "RUNNING", TargetState.PAUSED: "PAUSED", TargetState.STOPPED: "STOPPED"}


@dataclass(frozen=True, slots=True)
class ResourceArguments:
    """The command line. ``file`` may be ``-``, ``settings`` are ``KEY=VALUE``; ``prints`` starts nothing."""

    file: str
    name: str | None = None
    secrets: Path | None = None
    settings: Sequence[str] = ()
    prints: bool = False
    as_json: bool = False


def run_resource(program: str, arguments: ResourceArguments) -> int:
    """Run the command and return the exit code. Raises ConfigError if the file, a field, a secret, a setting or an
    argument is missing or wrong, OSError if the file cannot be read."""
    for given in arguments.settings:
        if given.find("=") < 1:
            raise ConfigError(f"'{given}' is not KEY=VALUE", "--set")
    if arguments.as_json and not arguments.prints:
        raise ConfigError("--json needs --print", "--json")
    translation = translated(arguments)
    if arguments.prints:
        (show_json if arguments.as_json else print)((as_json if arguments.as_json else as_files)(translation))
        return EXIT_OK
    configure_tracing(program)
    for notice in translation.start_notices(os.environ):
        log.warning("%s:%d: %s: %s", arguments.file, notice.line, notice.path, notice.text)
    _refuse_missing(translation, arguments)
    return _run(program, translation)


def translated(arguments: ResourceArguments) -> TranslatedResource:
    """Translate the resource, with the settings of the arguments. Raises ConfigError."""
    name = "standard input" if arguments.file == _STDIN else arguments.file
    documents = read_documents(_text(arguments.file, name), name)
    folder = arguments.secrets
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", "--secrets")
    keys = {} if folder is None else keys_in(folder)
    found = translate(chosen(documents, arguments.name, name), None if folder is None else str(folder.resolve()), keys)
    return found.with_settings(dict(each.split("=", 1) for each in arguments.settings))


def as_json(found: TranslatedResource) -> dict[str, Any]:
    """Return the worker's properties, the connectors as REST takes them, and the notices on fields, as JSON."""
    states = [{} if each.state is None else {"initial_state": _STATES[each.state]} for each in found.connectors]
    return {
        "name": found.name,
        "worker": _shown(found.worker),
        "connectors": [
            {"name": each.name, "config": _shown(each.config), **state}
            for each, state in zip(found.connectors, states, strict=True)
        ],
        "notices": [{"field": one.path, "line": one.line, "text": one.text} for one in found.notices],
        "missing": [{"secret": one.secret, "key": one.key, "line": one.node.line} for one in found.missing],
    }


def as_files(found: TranslatedResource) -> str:
    """Return the worker's file and each connector's as text, with notices on fields as comments."""
    lines = [f"# {found.name}: a worker's properties, for connect-distributed"]
    lines += [_line(key, value) for key, value in _shown(found.worker).items()]
    for each in found.connectors:
        state = "" if each.state is None else f", {_STATES[each.state]}"
        lines += ["", f"# {each.name}{state}: a connector's properties, for heliograph connectors create"]
        lines += [_line(key, value) for key, value in _shown(each.config).items()]
    if found.notices or found.missing:
        lines += ["", "# Fields without effect or equivalent, and missing secrets, by line:"]
    lines += [f"# {one.line}: {one.path}: {one.text}" for one in found.notices]
    lines += [f"# {one.node.line}: {one.node.path}: secret {one.secret} has no {one.key}" for one in found.missing]
    return "\n".join(printable(line) for line in lines)


def _line(key: str, value: str) -> str:
    """Format a line of a properties file; in the value, characters are not escaped that need it only in keys."""
    text = _KEY_MARK.sub(r"\1", javaproperties.escape(value))
    return f"{javaproperties.escape(key)}={text}"


def _shown(config: Mapping[str, str]) -> dict[str, str]:
    """Return the config with literal secrets hidden; references are shown."""
    return {key: _without_secrets(key, value) for key, value in config.items()}


def _without_secrets(key: str, value: str) -> str:
    if key.endswith(_JAAS) and _JAAS_OPTION.search(value):
        return _JAAS_OPTION.sub(_option_shown, value)
    if (is_secret(key) or _PARAMETER.match(key)) and not _REFERENCES.fullmatch(value):
        return HIDDEN
    return _USER_INFO.sub(rf"\1{HIDDEN}@", value)


def _option_shown(option: re.Match[str]) -> str:
    name, value = option["name"], option["value"].strip('"')
    return option[0] if name == "username" or _REFERENCES.fullmatch(value) else f'{name}="{HIDDEN}"'


def _text(file: str, name: str) -> str:
    data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if file == _STDIN else Path(file).read_bytes()
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"is larger than {MAX_FILE_BYTES} bytes. Is it a resource?", file=name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8", file=name) from None


def _refuse_missing(found: TranslatedResource, arguments: ResourceArguments) -> None:
    if not found.missing:
        return
    first, more = found.missing[0], len(found.missing) - 1
    rest = f" ({more} more {'is' if more == 1 else 'are'} missing; --print shows all)" if more else ""
    if arguments.secrets is None:
        raise first.node.error(f"{first.node.path} needs secret {first.secret}. Set --secrets DIR{rest}")
    file = arguments.secrets / first.secret / first.key
    raise first.node.error(f"{first.node.path}: {file} does not exist. A secret is a folder, its keys are files{rest}")


def _run(program: str, found: TranslatedResource) -> int:
    from connect.api.plugins import config_providers
    from connect.cli.daemons.connect_distributed import log_banner

    try:
        config = WorkerConfig.parse(found.worker, config_providers(), [one.config for one in found.connectors])
    except ConfigError as error:
        raise found.located(error) from None
    log_banner(found.name, config)
    for warning in config.warnings:
        log.warning("%s", found.located(ConfigError(warning, warning.partition(" ")[0])))
    checked_connectors(found, config)
    try:
        asyncio.run(run_until_signal(found, config))
    except NotStarted as error:
        print(f"{program}: error: {describe(error.reason)}", file=sys.stderr)
        return EXIT_NOT_STARTED
    return EXIT_OK
