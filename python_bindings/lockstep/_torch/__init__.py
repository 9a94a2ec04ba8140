"""PyTorch modules as graphs, and trained states copied back into modules."""
