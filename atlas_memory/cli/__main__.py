"""`python -m atlas_memory.cli` is `atlas`; torchrun starts it this way."""

from atlas_memory.cli.main import main

if __name__ == "__main__":
    main()
