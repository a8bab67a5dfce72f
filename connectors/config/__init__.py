"""``mm2.properties`` and connector configs: declared, parsed, typed."""
