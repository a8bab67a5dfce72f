"""Commands that run until stopped: workers and mirrors."""
