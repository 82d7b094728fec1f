"""Floor 0: the values that every other floor speaks in. No behaviour beyond what the values need."""
