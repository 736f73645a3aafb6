# Sourced by the other scripts: sets $root and $python, defines install.
# shellcheck shell=bash

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
python="$venv/bin/python"
unset PYTHONDONTWRITEBYTECODE # every process would compile every module again
unset PYTHONPATH              # the tests are of this tree, and count its lines once

# The first Python from 3.11 on: $PYTHON, python3, then the newest by its own name.
find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "lessvfl needs Python 3.11 or newer; set PYTHON to one." >&2
  return 1
}

# install NAME WHAT...: pip install WHAT into .venv, unless NAME was installed with the
# same pyproject.toml and constraints.txt before.
install() {
  local name="$1" stamp
  shift
  if [ ! -x "$python" ]; then
    echo "Creating .venv" >&2
    "$(find_python)" -m venv "$venv"
  fi
  stamp="$(cat "$root/pyproject.toml" "$root/constraints.txt" | cksum)"
  if [ "$(cat "$venv/.$name-stamp" 2>/dev/null)" = "$stamp" ]; then
    return
  fi
  echo "Installing into .venv; the first time takes a few minutes" >&2
  "$python" -m pip install -qq --upgrade "pip>=25.1"
  (cd "$root" && "$python" -m pip install -qq -c constraints.txt "$@")
  echo "$stamp" >"$venv/.$name-stamp"
}

# What the tests, the documentation and the package need.
install_tests() {
  install test --no-compile -e ".[docs,peers]" --group dev
}
