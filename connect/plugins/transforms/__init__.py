"""Kafka's single message transforms (``org.apache.kafka.connect.transforms``)."""
