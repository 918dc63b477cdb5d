"""One run: its settings (`spec`), its execution (`execute`), its outcome (`result`), and its files
(`folder`, `lines`). Modules here import `evaluation` and layers below it."""
