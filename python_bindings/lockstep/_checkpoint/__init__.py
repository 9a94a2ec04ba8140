"""Checkpoints of an executable: their format, the thread that writes them, and folders of them."""
