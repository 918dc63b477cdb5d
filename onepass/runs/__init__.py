"""One run: what is asked (`spec`), how it is carried out (`execute`), what came out (`result`), and
where that lies (`folder`, `lines`). Modules here import `evaluation` and what is below it."""
