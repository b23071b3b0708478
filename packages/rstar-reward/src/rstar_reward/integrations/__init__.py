"""Adapters: the verifier as the reward function of other training frameworks. None of them is imported here."""
