"""Recipes shipped with the package, one TOML file each: `rstar-trainer run <name>`."""
