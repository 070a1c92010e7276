"""How the processor of this process counts."""


def flush_tiny_numbers() -> None:
    """Let numbers below 1e-38 be 0: with them a processor takes up to a hundred times as long.

    A deep memory that forgets writes them: what is left of its first weights behind 16,000 tokens,
    and its gradients. It holds for this thread and those it starts later, so say it early. Only
    programs of our own say it; a library leaves the processor as it found it.
    """
    import torch

    torch.set_flush_denormal(True)  # False where the processor cannot, and then nothing is lost
