"""Measuring: rates and CPU beside other ways to run a program, overload, and deaths in the middle of work."""
