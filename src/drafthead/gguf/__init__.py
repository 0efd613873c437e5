"""GGUF files: validated and mapped (reader), and turned into a model description (spec)."""
