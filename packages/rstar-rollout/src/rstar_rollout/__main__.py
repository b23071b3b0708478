"""`python -m rstar_rollout`: the same as the command `rstar-rollout`."""

from rstar_rollout.cli import main

# Engines that spawn workers import this module again in each of them.
if __name__ == "__main__":
    main()
