"""The HTML report about runs: one self-contained page."""
