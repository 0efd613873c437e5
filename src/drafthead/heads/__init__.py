"""Head packages: the trained module as a folder of its own, checked before it is trusted."""
