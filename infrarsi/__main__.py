"""`python -m infrarsi` is `git-infrarsi`."""

from infrarsi.cli import main

if __name__ == "__main__":
    main()
