"""Translation of Strimzi's ``KafkaMirrorMaker2`` resources to settings of a worker and connectors."""
