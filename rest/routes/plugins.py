"""Plugins: which there are, what may be set for them, and whether a config is right."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from connect.core.herding import BadRequest, ConfigInfos, ConfigKeyInfo
from rest import bodies, schemas
from rest.calls import Calling, Name, TrueFlag, json_answered, json_asked
from rest.errors import RestError
from rest.schemas import json_response

_SUFFIX: Final = "Connector"

router = APIRouter(
    prefix="/connector-plugins", tags=["plugins"], dependencies=[Depends(json_answered), Depends(json_asked)]
)


@router.get("", response_model=list[schemas.Plugin])
async def list_plugins(call: Calling, connectorsOnly: TrueFlag = True) -> Response:
    """The connectors of this worker, or all its plugins."""
    return json_response([schemas.plugin(each) for each in call.herder.plugins(connectors_only=connectorsOnly)])


@router.get("/{plugin}/config", response_model=list[ConfigKeyInfo])
async def get_plugin_config(call: Calling, plugin: Name, version: str | None = None) -> Response:
    """The settings of a plugin."""
    return json_response(list(call.herder.plugin_config(plugin, version)))


@router.put("/{plugin}/config/validate", response_model=ConfigInfos, openapi_extra=bodies.schema(bodies.CONFIG))
async def validate(call: Calling, plugin: Name) -> Response:
    """Check a connector's config; what is wrong with a key stands beside it."""
    config = await call.json(bodies.CONFIG)
    included = config.get("connector.class")
    if included is not None and not _alias(included).endswith(_alias(plugin)):
        raise BadRequest(f"Included connector type {included} does not match request type {plugin}")
    try:
        infos = await call.within_time(call.herder.validate(plugin, config))
    except BadRequest as error:
        # So does Java, whose validation runs in a thread of its own and loses what kind of error it was.
        raise RestError(500, str(error)) from error
    return json_response(infos)


def _alias(plugin: str) -> str:
    return plugin.removesuffix(_SUFFIX) or plugin
