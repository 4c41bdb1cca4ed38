#!/bin/bash
# Makes every kernel that steps of five model shapes use for Radeons that are not here, by Mesa's radv without hardware, and holds what the driver says of them against the rules of
# docs/PORTABILITY.md. Exit status 0: all keep them; 1: some does not; 77: skipped, as this machine has no such driver.
#
#   tests/portability.sh [--bench PROGRAM] [--families A,B] [--models A,B] [--write docs/PORTABILITY.md]
exec python3 "$(dirname "${BASH_SOURCE[0]}")/portability/portability.py" "$@"
