"""OpenAI Responses. Source: OpenAI API reference, responses and its streaming events, and what compatible servers make
of it (vLLM, GitHub Copilot, Azure, Ollama)."""
