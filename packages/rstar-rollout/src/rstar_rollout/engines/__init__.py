"""Engines: what turns token ids into more token ids. One protocol, several implementations."""
