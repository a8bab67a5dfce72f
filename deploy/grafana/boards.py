"""Write the dashboards of this folder from ``boards.yml``: ``.venv/bin/python deploy/grafana/boards.py``.

A test checks that they are current. The format is that of Grafana 10, which later releases import too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
_FLOW: Final = 'source=~"$source", target=~"$target"'
_FILTERS: Final = {"FLOW": _FLOW, "GROUP": 'group=~"$group"', "WORKER": 'job="heliograph", instance=~"$instance"'}
_ANSWERS: Final = "kafka_connect_mirror_MirrorSourceConnector_source_answers"
#: The title of each variable, and the query for its values.
_VARIABLES: Final = {
    "source": ("Source", f"label_values({_ANSWERS}, source)"),
    "target": ("Target", f'label_values({_ANSWERS}{{source=~"$source"}}, target)'),
    "group": ("Group of workers", "label_values(kafka_connect_app_info_start_time_ms, group)"),
    "instance": ("Worker", 'label_values(process_start_time_seconds{job="heliograph"}, instance)'),
}
#: Colours of values, each from a number on. ``lag`` has the RPO of the rules as its limit.
_COLOURS: Final[Mapping[str, Sequence[tuple[float | None, str]]]] = {
    "": [(None, "green")],
    "any is bad": [(None, "green"), (1, "red")],
    "any is doubtful": [(None, "green"), (1, "orange")],
    "zero is bad": [(None, "red"), (1, "green")],
    "lag": [(None, "green"), (60, "orange"), (300, "red")],
    "time left": [(None, "red"), (3 * 86400, "orange"), (21 * 86400, "green")],
}
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "stat": {"colorMode": "background", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}},
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "state-timeline": {"mergeValues": True, "showValue": "auto"},
    "table": {"showHeader": True},
}
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_HEIGHT: Final = 8
_STAT_HEIGHT: Final = 4


def boards() -> list[dict[str, Any]]:
    """Return the dashboards as Grafana has them."""
    return [_board(described) for described in yaml.safe_load((HERE / "boards.yml").read_text("utf-8"))]


def files() -> dict[Path, str]:
    """Return the text of each dashboard, with a line for each panel so that changes can be read."""
    return {HERE / f"{board['uid']}.json": _text(board) for board in boards()}


def _text(board: Mapping[str, Any]) -> str:
    head = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in board.items() if name != "panels")
    panels = ",\n".join(f"  {json.dumps(panel)}" for panel in board["panels"])
    return f'{{\n{head} "panels": [\n{panels}\n ]\n}}\n'


def _board(described: Mapping[str, Any]) -> dict[str, Any]:
    datasource = {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}
    return {
        "uid": described["uid"],
        "title": described["title"],
        "description": described["text"],
        "tags": ["heliograph", "kafka"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "Heliograph",
                "tags": ["heliograph"],
                "asDropdown": True,
                "keepTime": True,
                "includeVars": True,
            }
        ],
        "annotations": {"list": [_alerts()]},
        "templating": {"list": [datasource, *map(_variable, described["variables"])]},
        "panels": list(_placed(described["rows"])),
    }


def _placed(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the panels from left to right, in as many lines as each row needs."""
    number, y = 0, 0
    for row in rows:
        number += 1
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": row["title"], "collapsed": False, "panels": [], "gridPos": place}
        x, y, height = 0, y + 1, 0
        for panel in row["panels"]:
            if x + panel["width"] > _COLUMNS:
                x, y, height = 0, y + height, 0
            number += 1
            height = max(height, _STAT_HEIGHT if panel["kind"] == "stat" else _HEIGHT)
            yield _panel(panel, number, {"h": height, "w": panel["width"], "x": x, "y": y})
            x += panel["width"]
        y += height


def _panel(described: Mapping[str, Any], number: int, place: Mapping[str, int]) -> dict[str, Any]:
    kind = described["kind"]
    steps = [{"value": value, "color": colour} for value, colour in _COLOURS[described.get("colours", "")]]
    values = {value: {"text": text} for value, text in described.get("values", {}).items()}
    more = f" What to do: docs/monitoring.md#{described['help']}" if "help" in described else ""
    return {
        "id": number,
        "type": kind,
        "title": described["title"],
        "description": described["text"] + more,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "targets": [
            _target(chr(ord("A") + index), query, legend, kind)
            for index, (legend, query) in enumerate(described["queries"].items())
        ],
        "fieldConfig": {
            "defaults": {
                "unit": described["unit"],
                "color": {"mode": "palette-classic" if kind == "timeseries" else "thresholds"},
                "thresholds": {"mode": "absolute", "steps": steps},
                "mappings": [{"type": "value", "options": values}] if values else [],
            },
            "overrides": [],
        },
        "options": _OPTIONS[kind],
    }


def _target(name: str, query: str, legend: str, kind: str) -> dict[str, Any]:
    for word, of_variables in _FILTERS.items():
        query = query.replace(f"{{{word}", f"{{{of_variables}")
    is_now = kind in ("stat", "table")
    return {
        "refId": name,
        "datasource": _DATASOURCE,
        "expr": query,
        "legendFormat": legend or "__auto",
        "instant": is_now,
        "range": not is_now,
        "format": "table" if kind == "table" else "time_series",
    }


def _variable(name: str) -> dict[str, Any]:
    label, query = _VARIABLES[name]
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts that fire",
        "enable": True,
        "iconColor": "red",
        "datasource": _DATASOURCE,
        "expr": 'ALERTS{alertname=~"Heliograph.+", alertstate="firing"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{source}}->{{target}} {{instance}} {{connector}}",
        "step": "60s",
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
