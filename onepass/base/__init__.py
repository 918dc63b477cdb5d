"""What every other package stands on: settings, registries, errors, text, file I/O, devices, seeds,
plugins, locks and stateful parts. It imports nothing else of onepass."""
