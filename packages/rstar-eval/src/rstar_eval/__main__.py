"""`python -m rstar_eval` is `rstar-eval`."""

from rstar_eval.cli import main

if __name__ == "__main__":
    main()
