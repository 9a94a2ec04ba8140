"""The parts that the whole package shares: loading the extension module, errors, argument checks, names, arrays and
files."""
