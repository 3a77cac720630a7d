# The daily commands. Each does all of its own set-up, in .venv and build/ of this checkout, and is safe to repeat.
#   make test PYTHON=/usr/bin/python3.12 CC=clang     another interpreter or compiler
#   make test ARGS='-k via -x'                        arguments for pytest

SECONDS ?= 60

.PHONY: help setup slides walk demo test vm pythons wheels bench benchmark benchmark-compare mpi4py mpi4py-programs lint ctest asan tsan fuzz soak attack docs links first-figure lab clean

help: ; @sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile
setup: ; @tools/setup-venv $(EXTRAS) ## make .venv and install viakit into it
demo: setup ; @.venv/bin/viakit demo ## VIA beside TCP, UDP, ZeroMQ and MPI, in under a minute, without root
# --no-loadscope-reorder: pytest-xdist would begin with the files that have many tests. Files with few and long tests, such
# as test_browser.py, would come last, and one of the two processes would run them alone.
test: EXTRAS = lab browser
test: setup ctest ; @cd tests && ../.venv/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS) ## C tests, then Python tests, a file of them in each of two processes
vm: setup ; @cd tests && ../.venv/bin/pytest vm $(ARGS) ## tests between two or three virtual machines with kernels of their own; needs qemu-system-x86
bench: setup ; @tools/ctest plain --list >/dev/null && .venv/bin/ninja -C build/ctest --quiet tests/path_cost tests/path_cost_bare && .venv/bin/viakit bench --programs build/ctest/tests && cd tests && ../.venv/bin/pytest --benchmark-only python/test_benchmark_via.py $(ARGS) ## every promised figure beside its peer
benchmark: setup ; cd tests && ../.venv/bin/pytest --benchmark-only --benchmark-save=run --benchmark-save-data --benchmark-storage=file://../build/benchmarks --benchmark-columns=median,iqr,rounds python/test_benchmark_via.py python/test_benchmark_ranks.py $(ARGS) ## time every hot path of the Python interfaces, and keep the times in build/benchmarks
benchmark-compare: benchmark ; .venv/bin/python tools/benchmark_compare.py --last build/benchmarks ## the same, then a comparison with the run before, with statistics
mpi4py-programs: setup ; @.venv/bin/python tools/mpi4py_programs.py $(ARGS) ## programs that use mpi4py, from its demos and from PyPI, on viakit and on Open MPI
mpi4py: setup ; @.venv/bin/python tools/mpi4py_suite.py $(ARGS) ## mpi4py's own test suite on viakit, beside Open MPI; ARGS=--help for options
lint: ; @tools/setup-venv dev && tools/lint ## formatters and linters, in check mode
ctest: setup ; @tools/ctest plain ## C tests
asan: setup ; @tools/ctest asan ## C tests under AddressSanitizer and UBSan
tsan: setup ; @tools/ctest tsan ## C tests under ThreadSanitizer
fuzz: setup ; @tools/fuzz $(SECONDS) ## hostile input, libFuzzer's and more, SECONDS=60 per target, and how much of it
soak: SECONDS = 600
soak: setup ; @tools/ctest plain 'faults loop' && tools/soak $(SECONDS) ## a million messages per level over bad links, what happens to programs and hosts, SECONDS=600 of fuzzing per target; hours
attack: SECONDS = 300
attack: setup ; @tools/ctest plain --list >/dev/null && .venv/bin/python tools/attack.py --seconds $(SECONDS) $(ARGS) ## hostile neighbours of every kind, SECONDS=300 in all, and a table of what held; ARGS=--help for options
docs: ; @tools/setup-venv docs && VIAKIT_EXECUTE=$(EXECUTE) .venv/bin/sphinx-build -q -W docs build/docs && echo build/docs/index.html ## documentation as HTML; EXECUTE=0 runs no lesson, EXECUTE=again runs all of them again
links: ; @tools/setup-venv docs && .venv/bin/python tools/links ## request each external link of the documentation and of the lessons; without a connection they are skipped, with the reason
slides: setup ; @.venv/bin/python tools/slides $(ARGS) ## the slides of the course as one page of reveal.js, and as PDF if Chromium is there
walk: EXTRAS = lab
walk: setup ; @.venv/bin/python tools/walk $(ARGS) ## the plan of ninety minutes, with a stopwatch; ARGS=--quick
first-figure: EXTRAS = lab browser
first-figure: setup ; @cd tests && ../.venv/bin/pytest -q python/test_browser.py -k a_lesson_in_jupyterlab && cat ../build/browser/first-figure.txt ## the seconds from the start of lesson 0's first cell to its first figure, in JupyterLab and Chromium
pythons: ; @tools/pythons $(ARGS) ## the Python tests on every interpreter from 3.10 on that is found
wheels: ; @tools/wheels ## manylinux wheels for x86-64 and aarch64 in dist/, for every interpreter found; each is installed and tried
lab: ; @tools/setup-venv lab && .venv/bin/viakit lab $(ARGS) ## JupyterLab on the lessons
clean: ; @rm -rf .venv .setup.lock build dist docs/classes viakit-demo .pytest_cache .ruff_cache .hypothesis .benchmarks .mypy_cache ## all that the above have made
