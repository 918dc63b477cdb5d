"""The reproduction of the GSA paper (CVPR 2023): its experiments, published values, tables, figures
and claims.

Modules here import `report`, `sweeps` and the packages below them. Only the command line imports
these modules.
"""
