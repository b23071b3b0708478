"""``python -m rstar_model``."""

from rstar_model.cli import main

main()
