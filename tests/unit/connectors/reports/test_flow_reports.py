"""Only what a checkpoint connector reports is read, and the config of the reverse flow is that of the flow, turned."""

from __future__ import annotations

import pytest

from connect.core.errors import ConfigError
from connectors.kept_reports import KeptReports
from connectors.reports.flow_reports import flow_report
from connectors.reports.flow_site import turned


async def test_what_is_wrong_or_of_another_connector_reads_nothing() -> None:
    assert await flow_report({}, KeptReports(), "lag", {}, {}) is None
    with pytest.raises(ConfigError, match="top is 'all'"):
        await flow_report({}, KeptReports(), "groups", {}, {"top": "all"})


def test_the_config_of_the_reverse_flow() -> None:
    config = {"source.cluster.alias": "us", "target.cluster.alias": "eu", "target.admin.x": "1", "topics": "source"}
    assert turned(config) == {
        "target.cluster.alias": "us",
        "source.cluster.alias": "eu",
        "source.admin.x": "1",
        "topics": "source",
    }
