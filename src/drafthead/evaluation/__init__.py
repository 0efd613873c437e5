"""Measuring: arms interleaved in one run, the cost of a pass, and whether the bits hold."""
