"""Checkpoints of learners: `file` writes and reads them, and `validate` checks a state before
anything is loaded from it. Modules here import `learning` and what it imports."""
