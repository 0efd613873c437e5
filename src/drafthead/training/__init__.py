"""From prompts to a trained head: regen, data, modules, trainer, export, measurement.

The only room that may import torch. `prompts` and `regen` do not, so that answers can be made on
a machine without it.
"""
