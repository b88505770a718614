"""The process of one peer: `python -m dada.net FOLDER OPTIONS`, which `dada peer run` turns into."""

import sys

from dada.net.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
