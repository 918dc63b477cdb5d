"""A learner as a file: `file` writes and reads it, `validate` refuses what is not a whole state of
this learner before anything is loaded. They import what `learning` imports."""
