"""A trained model on a task, by the protocol that was published for it."""
