"""Text in and out: tokenizer, chat template and incremental decoder, all from the GGUF file."""
