"""Commands that run until they are stopped: workers and mirrors."""
