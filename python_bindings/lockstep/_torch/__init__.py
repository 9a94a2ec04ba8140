"""PyTorch modules as graphs, and trained states back into modules."""
