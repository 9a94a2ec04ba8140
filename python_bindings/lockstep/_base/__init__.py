"""The parts that the whole package shares: loading the extension module, errors, checks of arguments, names, arrays and files."""
