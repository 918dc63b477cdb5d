"""Rows of runs as tables, figures, tests of significance and pages; nothing here trains. Modules
here import `runs` and what is below it."""
