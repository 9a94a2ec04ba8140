"""Reports of the time of a step, a call or a whole job."""
