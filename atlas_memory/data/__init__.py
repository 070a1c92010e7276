"""From text to batches: sources, tokenizers, the token cache and the windows cut from it."""
