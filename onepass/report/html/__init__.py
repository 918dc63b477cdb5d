"""A page about runs that needs no network: its data, and the page itself. Modules here import what
`report` imports."""
