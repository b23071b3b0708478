"""`python -m rstar_sandbox`: the same as the command `rstar-sandbox`."""

from rstar_sandbox.cli import main

main()
