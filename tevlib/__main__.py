"""`python -m tevlib`."""

import sys

from tevlib.cli import main

sys.exit(main())
