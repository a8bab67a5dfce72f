"""Resources to translate: the same flow in the two shapes that the versions of the API have."""

from collections.abc import Mapping

from connectors.strimzi.resource import chosen, read_documents
from connectors.strimzi.translation import TranslatedResource, WantedConnector, translate

NEW = """\
apiVersion: kafka.strimzi.io/v1
kind: KafkaMirrorMaker2
metadata:
  name: us-to-eu
  namespace: mirrors
spec:
  target:
    alias: eu
    bootstrapServers: eu:9093
    groupId: mirror-group
    configStorageTopic: mirror-configs
    offsetStorageTopic: mirror-offsets
    statusStorageTopic: mirror-status
  mirrors:
    - source:
        alias: us
        bootstrapServers: us:9093
      sourceConnector: {}
"""

OLD = """\
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaMirrorMaker2
metadata: {name: us-to-eu}
spec:
  connectCluster: eu
  clusters:
    - {alias: us, bootstrapServers: us:9092}
    - {alias: eu, bootstrapServers: eu:9092}
  mirrors:
    - sourceCluster: us
      targetCluster: eu
      sourceConnector: {}
"""


def translation(
    text: str, secrets: Mapping[str, frozenset[str]] | None = None, name: str | None = None
) -> TranslatedResource:
    """Without ``secrets`` there is no folder of them."""
    node = chosen(read_documents(text, "mirror.yaml"), name, "mirror.yaml")
    return translate(node, None if secrets is None else "/run/secrets", secrets or {})


def source_of(found: TranslatedResource) -> WantedConnector:
    (wanted,) = [each for each in found.connectors if each.name.endswith(".MirrorSourceConnector")]
    return wanted
