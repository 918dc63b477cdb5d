"""Tables, figures, paired tests, exports and HTML reports of finished runs; maps of streams, and
sheets with the images of a dataset.

Nothing here trains. Modules here import `runs` and the packages below it.
"""
