"""The command line: the one place where all layers meet."""
