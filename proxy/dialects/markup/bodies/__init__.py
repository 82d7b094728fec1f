"""The bodies of calls: the grammars that formats share. Each makes a generator that reads one unit, or refuses it."""
