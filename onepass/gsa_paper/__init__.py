"""The reproduction of the GSA paper (CVPR 2023): its experiments, published values, tables, figures
and claims.

Modules here import `report`, `sweeps` and the packages below these. Only the command line and
`onepass.paper` use them.
"""
