"""What lockstep.exchange is made of: definitions, the view of the ranks that they get, and their bodies in a step."""
