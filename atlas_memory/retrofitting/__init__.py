"""A memory beside the attention of a pretrained transformer."""
