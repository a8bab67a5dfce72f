"""Connection settings from a client's properties: addresses, TLS and SASL."""
