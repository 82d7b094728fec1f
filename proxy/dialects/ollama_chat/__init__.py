"""Ollama's own `/api/chat`; upstream only. Source: Ollama, docs/api.md, "Generate a chat completion"."""
