"""The adapters that come with pbsdk: one module a provider family, each behind its own extra."""
