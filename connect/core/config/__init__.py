"""Holds declared configs and their values: Kafka's ``ConfigDef``, properties files, references."""
