"""OpenAI Chat Completions. Source: OpenAI API reference, chat completions, and what some 30 backends make of it."""
