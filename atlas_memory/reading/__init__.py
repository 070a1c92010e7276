"""Reading without end, memory files, and generation from them."""
