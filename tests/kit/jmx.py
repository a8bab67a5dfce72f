"""The management beans of a Java program on this machine, read as monitoring tools read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from connect.embedded import cluster_config
from connect.embedded.java import find_java

_PATH: Final = "jmxrmi"


class Bean(NamedTuple):
    """``properties`` are those of its name; ``attributes`` their values, None where one cannot be sent."""

    domain: str
    properties: dict[str, str]
    attributes: dict[str, Any]


def options(port: int) -> Sequence[str]:
    """What a JVM has to be told to be read at ``port``."""
    keys = {"port": port, "rmi.port": port, "host": cluster_config.HOST, "authenticate": "false", "ssl": "false"}
    rmi = f"-Djava.rmi.server.hostname={cluster_config.HOST}"
    return (rmi, *(f"-Dcom.sun.management.jmxremote.{key}={value}" for key, value in keys.items()))


@contextmanager
def reader() -> Iterator[JavaGateway]:
    port = launch_gateway(java_path=str(find_java().executable), die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.shutdown()


def beans(through: JavaGateway, port: int, domain: str) -> list[Bean]:
    management: Any = through.jvm.javax.management
    url = management.remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://{cluster_config.HOST}:{port}/{_PATH}")
    connector = management.remote.JMXConnectorFactory.connect(url)
    try:
        server = connector.getMBeanServerConnection()
        names = server.queryNames(management.ObjectName(f"{domain}:*"), None)
        return [_bean(server, name) for name in names]
    finally:
        connector.close()


def _bean(server: Any, name: Any) -> Bean:
    reported = sorted(attribute.getName() for attribute in server.getMBeanInfo(name).getAttributes())
    properties = {str(key): str(value).strip('"') for key, value in dict(name.getKeyPropertyList()).items()}
    return Bean(str(name.getDomain()), properties, {each: _value(server, name, each) for each in reported})


def _value(server: Any, name: Any, attribute: str) -> Any:
    try:
        return server.getAttribute(name, attribute)
    except Py4JJavaError:
        return None
