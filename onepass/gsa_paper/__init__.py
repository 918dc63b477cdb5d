"""All that knows the one paper that this library grew around (GSA, CVPR 2023): its experiments,
published values, tables, figures and claims. Modules here import `report`, `sweeps` and what is
below them; nothing but the command line imports them."""
