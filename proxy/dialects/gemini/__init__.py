"""Gemini, `generateContent` and `streamGenerateContent`; upstream only. Source: Gemini API reference (v1beta),
generateContent, function calling, thought signatures; Vertex AI reference, streamed function call arguments."""
