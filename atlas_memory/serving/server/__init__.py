"""atlas serve: OpenAI's API over HTTP, memories, and a page to look at them."""
