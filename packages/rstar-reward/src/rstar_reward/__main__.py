"""`python -m rstar_reward`."""

from rstar_reward.cli import main

if __name__ == "__main__":
    main()
