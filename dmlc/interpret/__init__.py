"""The interpreter: runs a module, one rank or all ranks at once, in one process."""
