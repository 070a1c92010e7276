"""What the memories of a model did with a text, as tensors and as a page."""
