"""Reports of a worker on the consumer groups of a flow and on a move of them."""
