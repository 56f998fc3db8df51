"""Sweeps: many runs from one config file, trained and compared."""
