"""Anthropic Messages. Source: Anthropic API reference (messages, streaming), and what compatible servers make of it."""
