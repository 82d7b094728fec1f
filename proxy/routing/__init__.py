"""Floor 4: which backends may answer a request, and in which order. Pure: the time and the dice are arguments."""
