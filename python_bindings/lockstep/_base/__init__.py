"""Shared parts of the package: the extension module, errors, argument checks, names, arrays and files."""
