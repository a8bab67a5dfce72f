"""What talks to Kafka: I/O that decides nothing."""
