"""The verifier for mathematical answers."""
