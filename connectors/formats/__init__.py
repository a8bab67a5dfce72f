"""Values that all parts of a mirror share, and the bytes that it stores in Kafka."""
