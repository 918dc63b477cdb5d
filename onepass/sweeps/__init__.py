"""Many runs: the file that lists them, how long each will take, which comes next, and what carries
them out. Modules here import `executors`, `runs` and what is below them."""
