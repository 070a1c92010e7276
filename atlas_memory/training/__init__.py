"""A thin layer over transformers' Trainer: recipes, checkpoints, run folders, carried memory."""
