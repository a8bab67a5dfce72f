"""The Spark driver: its process, its session, the frames of its jobs, and the worker's hold on it."""
