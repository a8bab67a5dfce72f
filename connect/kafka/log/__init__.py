"""Topics and committed offsets: creates, reads and writes them, also in transactions."""
