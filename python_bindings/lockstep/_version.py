"""The version of this package, in a file that can be read where the package cannot be imported."""

VERSION = "0.1.0"
