"""Drafters: one file each; they do not import one another."""
