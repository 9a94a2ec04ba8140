"""Programs in the text form of XLA's HLO, in exact arithmetic."""
