"""How a cluster is reached: a client's properties, TLS, SASL."""
