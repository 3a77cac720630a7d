# For tools/pythons and tools/wheels: the interpreters from 3.10 on that are found, in PATH and among those of pyenv.

# Print "VERSION PATH" for the first interpreter of each minor version, oldest first.
interpreters() {
    local candidate version
    for candidate in python3.1{0,1,2,3,4} python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
        candidate=$(command -v "$candidate") || continue
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2] if sys.version_info >= (3, 10) else "")' \
            2>/dev/null) || continue
        [ -n "$version" ] && printf '%s %s\n' "$version" "$candidate"
    done | sort -V -s -u -k1,1
}

# Whether the user wants this version: VERSIONS="3.10 3.13", or all.
wanted() { [ -z "${VERSIONS:-}" ] || [[ " $VERSIONS " == *" $1 "* ]]; }
