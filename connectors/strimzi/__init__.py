"""Strimzi's ``KafkaMirrorMaker2`` resources, read and turned into the settings of a worker and its connectors; pure."""
