"""What a Spark task runs: fetch, decide, rewrite, produce."""
