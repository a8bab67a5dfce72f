"""Declared settings and their values: Kafka's ``ConfigDef``, properties files, references."""
