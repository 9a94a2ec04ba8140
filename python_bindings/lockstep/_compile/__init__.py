"""From a graph to an executable: options, placements, plans, settings, and the collectives of a communicator."""
