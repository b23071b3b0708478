"""`python -m rstar_trainer` is `rstar-trainer`."""

from rstar_trainer.cli import main

if __name__ == "__main__":
    main()
