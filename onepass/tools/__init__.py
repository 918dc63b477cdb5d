"""Tools around learners: the contract's checks, benchmarks, a recorder of forward passes and the
classification of image files.

They may import every package below the command line except `sweeps`, `tuning` and `gsa_paper`.
"""
