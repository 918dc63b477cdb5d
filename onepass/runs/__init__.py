"""Runs: their settings (`spec`), execution (`execute`), results (`result`) and files (`folder`,
`lines`), and the search for finished and unfinished ones (`find`, `query`). Modules here import
`evaluation` and layers below it."""
