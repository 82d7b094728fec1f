"""What the proxy costs, beside others on the same work: a mock backend, a load, and the commands."""
