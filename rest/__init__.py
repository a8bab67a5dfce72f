"""The REST API of a worker: Kafka Connect's own, served by FastAPI in the worker's loop."""
