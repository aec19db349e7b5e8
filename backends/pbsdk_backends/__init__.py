"""The adapters that come with pbsdk: one module per family of providers, each behind an extra."""
