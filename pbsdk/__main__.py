"""`python -m pbsdk` is `pbsdk`."""

from pbsdk.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
