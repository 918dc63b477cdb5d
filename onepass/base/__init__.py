"""The foundation of every other package: settings, registries, errors, text, file I/O, devices,
seeds, plugins, locks and stateful parts. It imports nothing else from onepass."""
