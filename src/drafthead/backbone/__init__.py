"""Backbones: the known ones and their files, how they are fetched, the handle that runs one."""
