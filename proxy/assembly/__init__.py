"""Floor 3: which call a delta belongs to, and who that call is. Claims in, held calls and quirks out."""
