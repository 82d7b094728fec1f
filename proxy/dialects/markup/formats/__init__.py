"""The formats: each a name, a tier and its rows."""
