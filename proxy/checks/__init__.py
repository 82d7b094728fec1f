"""Judges one finished call: its arguments are settled, read as strict JSON, held against the schema, and repaired."""
