"""Real Apache Kafka on this machine, for `heliograph dev`, demo, tests and bench: its Java, its jars, its brokers."""
