"""Programs that run where the package is installed, without further files: `python -m lockstep.examples.digits`."""
