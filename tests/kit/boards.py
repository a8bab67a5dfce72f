"""The dashboards and rules of ``deploy/``: their queries, and the metrics and labels that each one names."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

_DEPLOY: Final = Path(__file__).parents[2] / "deploy"
_DOCS: Final = _DEPLOY.parent / "docs" / "monitoring.md"
RULES: Final = _DEPLOY / "prometheus" / "heliograph-rules.yml"
RULE_TESTS: Final = sorted((_DEPLOY / "prometheus" / "tests").glob("*.yml"))
#: What Prometheus adds to each series that it reads.
_OF_SCRAPE: Final = frozenset({"instance", "job"})
_NAME: Final = re.compile(r"\b(?:kafka_connect_|heliograph[_:]|process_)[\w:]*")
_GROUPING: Final = re.compile(r"\b(?:by|on) ?\(([^)]*)\)")


@dataclass(frozen=True)
class Query:
    """One query; ``place`` says where it is."""

    place: str
    expr: str

    @property
    def with_all(self) -> str:
        return re.sub(r"\$\w+", ".*", self.expr)

    @property
    def names(self) -> set[str]:
        return set(_NAME.findall(_without_strings(self.expr)))

    def labels_of(self, name: str) -> set[str]:
        """The labels that the query expects of a metric: in its filters, and in all that it groups by."""
        expr = _without_strings(self.expr)
        matchers = re.findall(re.escape(name) + r"(?![\w:])\{([^}]*)\}", expr)
        found = {one for text in matchers for one in re.findall(r"(\w+) ?(?:=~|!~|!=|=)", text)}
        return found | {one for text in _GROUPING.findall(expr) for one in re.findall(r"\w+", text)}


def _without_strings(expr: str) -> str:
    return re.sub(r'"[^"]*"', '""', expr)


def generator() -> ModuleType:
    """The module that writes the dashboards; the folder is no package."""
    spec = importlib.util.spec_from_file_location("boards_of_grafana", _DEPLOY / "grafana" / "boards.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for board in generator().boards():
        for panel in board["panels"]:
            if panel["type"] != "row":
                yield board["title"], panel


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule in rules():
        if "record" in rule:
            query = Query(rule["record"], rule["expr"])
            grouped = {one for text in _GROUPING.findall(query.expr) for one in re.findall(r"\w+", text)}
            found.setdefault(rule["record"], set()).update(grouped, rule.get("labels", {}))
    # A user may give one flow its own.
    for name in ("heliograph:rpo_seconds", "heliograph:rpo_records"):
        found[name] |= {"source", "target"}
    return found


def described() -> dict[str, set[str]]:
    """The metrics of the table in the docs, with their labels."""
    rows = re.findall(r"^\| `(Mirror\w+|heliograph_\w+)` \| ([\w, ]*)\|", _DOCS.read_text("utf-8"), re.MULTILINE)
    return {
        re.sub("^Mirror", "kafka_connect_mirror_Mirror", name): set(re.findall(r"\w+", labels)) for name, labels in rows
    }


def queries() -> list[Query]:
    of_panels = [
        Query(f"{board}: {panel['title']}", target["expr"]) for board, panel in panels() for target in panel["targets"]
    ]
    return [*of_panels, *(Query(rule.get("record") or rule["alert"], rule["expr"]) for rule in rules())]


def of_page(text: str) -> dict[str, set[str] | None]:
    """The labels of each metric of ``/metrics``; None for one without a series."""
    found: dict[str, set[str] | None] = {}
    for family in text_string_to_metric_families(text):
        total = "_total" if family.type == "counter" else ""
        found[family.name.removesuffix("_total") + total] = None
        for sample in family.samples:
            found[sample.name] = (found.get(sample.name) or set()) | set(sample.labels)
    return found


def unknown(page: Mapping[str, set[str] | None]) -> list[str]:
    """What queries name and a metrics page does not have, in words."""
    known: dict[str, set[str] | None] = {**page, **recorded()}
    wrong = []
    for query in queries():
        for name in query.names:
            labels = known.get(name, set())
            if name not in known:
                wrong.append(f"{query.place}: no metric {name}")
            elif labels is not None and (missing := query.labels_of(name) - labels - _OF_SCRAPE):
                wrong.append(f"{query.place}: {name} has no label {', '.join(sorted(missing))}")
    return wrong
