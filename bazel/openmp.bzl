"""Compiler options for sources with OpenMP pragmas; link with @openmp//:openmp."""

OPENMP_COPTS = ["-fopenmp"]
