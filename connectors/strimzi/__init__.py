"""Strimzi's ``KafkaMirrorMaker2`` resources, read as a worker's and connectors' settings."""
