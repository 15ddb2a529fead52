#!/bin/bash
# Rewrites all sources with clang-format; with --check it only looks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=(-i)
[[ ${1:-} == --check ]] && mode=(--dry-run -Werror)
find include src trainer tests bench examples -name '*.[ch]' -print0 | sort -z | xargs -0 -r clang-format "${mode[@]}"
