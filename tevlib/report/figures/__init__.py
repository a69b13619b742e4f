"""Figures from records and recorded rounds: `draw` knows them all by name."""
