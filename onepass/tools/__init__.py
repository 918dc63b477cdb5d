"""Tools around learners: checks of the contract that every method keeps, a benchmark of training
steps, a recorder of forward passes, and the classification of image files.

Modules here may import every package below the command line except `sweeps`, `tuning` and
`gsa_paper`.
"""
