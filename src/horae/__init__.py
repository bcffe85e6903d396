"""Horae: a scheduler for shared GPU clusters that train models."""

__version__ = "0.1.0"
