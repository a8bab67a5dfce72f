"""The command line, the only place where all layers meet."""
