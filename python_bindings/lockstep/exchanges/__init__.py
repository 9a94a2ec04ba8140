"""The exchanges that lockstep.exchange has, each a page after its paper. They are examples of how to write one, too."""
