"""Lineshaft: a job file goes in; an evaluated, versioned, downloadable model comes out."""
