"""One rollout step of a modelled cluster, under the same scheduling policies as the real service."""
