"""Floor 4: from verdicts to what the client gets."""
