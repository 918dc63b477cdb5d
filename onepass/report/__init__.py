"""Tables, figures, paired tests, exports and HTML reports about finished runs.

Nothing here trains. Modules here import `runs` and the packages below it.
"""
