"""Topics and groups' offsets: made, read, written, in transactions too."""
