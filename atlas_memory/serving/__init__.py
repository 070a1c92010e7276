"""The server: an engine that runs many texts at once, and `server/`, which speaks HTTP."""
