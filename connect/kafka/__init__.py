"""I/O with Kafka: connections, groups and logs."""
