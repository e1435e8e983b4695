"""``python -m nsqpy`` is the console script ``nsqpy``."""

import sys

from nsqpy.cli import main

if __name__ == "__main__":
    sys.exit(main())
