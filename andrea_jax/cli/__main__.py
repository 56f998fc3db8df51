import sys

from andrea_jax.cli import main

sys.exit(main())
