"""`python -m proxy` is `wholecall`."""

from proxy.cli import main

main(prog_name="wholecall")
