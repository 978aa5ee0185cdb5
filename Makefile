# Every task, with all of its set-up: Python 3.11+ with venv and pip, and make, are all that a machine needs.
# The locks name packages, versions and hashes, never an index: the machine's own settings say where packages come from.
PYTHON ?= python3
export PIP_FIND_LINKS =
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# A cluster starts many processes: what one has compiled the others must not compile again.
export PYTHONDONTWRITEBYTECODE =
bin := .venv/bin

help:           ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 12

demo: .venv/installed  ## the main job on a real broker, with four kills, checked for exactly once (two minutes)
	$(bin)/python -m integration.demo.totals
demo-spark: .venv-spark/installed  ## a backfill on Spark with kills, then live, checked for exactly once (about three minutes)
	.venv-spark/bin/python -m integration.demo.spark
check: .venv/installed  ## lint, types, walls and unit tests (six minutes)
	@$(bin)/python -m integration.run_tests check
test: .venv/installed .venv-spark/installed  ## check, the site, 300 simulated clusters, each kind of thing on a real broker and Spark (15 minutes)
	@$(bin)/python -m integration.run_tests test
test-all: .venv/installed .venv-spark/installed $(if $(filter 5,$(or $(PART),5)),.venv-spark-4.2/installed)  ## test, and all slow tests (over an hour); one part of five: make test-all PART=3
	@$(bin)/python -m integration.run_tests test-all $(if $(PART),--part $(PART))
test-spark: .venv-spark/installed  ## the tests on a real Spark, in an environment of their own
	.venv-spark/bin/pytest integration/spark --numprocesses 2 --dist loadfile -m "not soak"
test-spark-oldest: .venv-spark-4.2/installed  ## some of them on the oldest Spark that is supported
	.venv-spark-4.2/bin/pytest -m "not soak" $(addprefix integration/spark/test_,$(oldest_spark))
test-lowest: .venv-lowest/installed  ## a part of the tests with the lowest version of every dependency
	PYTEST_ADDOPTS="-p no:anyio" .venv-lowest/bin/pytest --quiet --numprocesses 2 --hypothesis-profile check $(lowest_tests)
bench: .venv/installed  ## side by side with hand-written loops, CPU per record: make bench [QUICK=1]
	$(bin)/python -m integration.bench $(if $(QUICK),--quick)
bench-spark: .venv-spark/installed  ## backfills beside bounded runs and PySpark by hand: make bench-spark [QUICK=1]
	.venv-spark/bin/python -m integration.bench.spark_bench $(if $(QUICK),--quick)
soak: .venv/installed  ## random kills for a long time: make soak MINUTES=60
	$(bin)/python -m integration.faults.soak --minutes $(or $(MINUTES),30)
chaos: .venv-spark/installed  ## every step attacked on real clusters, into docs/evidence/kill-matrix.md: make chaos [CELLS=...] [MISSING=1]
	set -f; $(spark_bin)/python -m integration.faults.kill_matrix --seed $(or $(SEED),1) $(if $(MISSING),--missing) $(CELLS)
sim: .venv/installed  ## simulated clusters under faults until stopped: make sim [FROM=1] [BACKFILLS=1] [EVENT_TIME=1]
	$(bin)/python -m tests.simulator $(if $(BACKFILLS),--backfills) $(if $(EVENT_TIME),--event-time) --seeds $(or $(FROM),1)..
golden: .venv/installed  ## a new generation of golden storages, after a change of what is stored: make golden [CASE=...]
	$(bin)/python -m tests.golden.make $(if $(CASE),--case $(CASE))
images: .venv/installed  ## container images for the tests, where a Docker engine answers
	$(bin)/python -m integration.support.engine
docs: .venv/installed  ## the documentation site, into site/: strict, with every link checked
	NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build --strict --config-file integration/website/mkdocs.yml
ready: .venv/installed  ## set up, start the broker, one record through it, stop it
	$(bin)/python -m integration.support.ready

lint: .venv/installed  ## ruff: rules and format
	$(bin)/ruff check --quiet
	$(bin)/ruff format --quiet --check
types: .venv/installed  ## mypy, strict
	$(bin)/mypy --no-error-summary
lock: .venv/installed  ## resolve again: Python packages for every platform, Kafka's jars
	$(compile) --output-file bootstrap.lock bootstrap.in
	$(compile) --extra broker --extra dev --extra docs --output-file requirements.lock pyproject.toml
	$(compile) --extra spark --group spark-build --constraint requirements.lock \
	    --output-file requirements-spark.lock pyproject.toml
	echo 'pyspark==4.2.*' | $(compile) --output-file requirements-spark-4.2.lock -
	$(bin)/python -m tidegate.drivers.kafka.jars
clean:          ## remove the environment and what tests leave (the caches per user and .tidegate stay)
	rm -rf .venv .venv-spark .venv-lowest $(spark_4_2) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

compile = $(bin)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links

# pip brings uv, uv brings the rest; where only pip knows the way to the packages (its own index, its own certificates),
# pip brings all. An environment that was complete once is brought up to date in place, any other is made anew.
# The stamps are written last: an interrupted set-up starts again.
.venv/ready: bootstrap.lock requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "tidegate needs Python 3.11 or later as $(PYTHON); name another one: make PYTHON=python3.12" >&2; exit 1; }
	@test -e $@ || $(PYTHON) -m venv --clear .venv || { \
	    echo "$(PYTHON) -m venv failed. On Debian and Ubuntu it is a package of its own: apt install python3-venv" >&2; exit 1; }
	@echo "setting up .venv" >&2
	@$(bin)/python -m pip install --quiet --no-deps --only-binary :all: --require-hashes --requirement bootstrap.lock
	@$(bin)/uv pip sync --quiet --python $(bin)/python --no-build --require-hashes bootstrap.lock requirements.lock || { \
	    echo "uv could not; pip does it (slower)" >&2; \
	    $(bin)/python -m pip install --quiet --no-deps --only-binary :all: --require-hashes --requirement requirements.lock; }
	@touch $@
# tidegate itself: a line in a .pth file and the command; hatchling and editables are in the lock, so nothing is fetched.
.venv/installed: .venv/ready pyproject.toml
	@$(bin)/uv pip install --quiet --offline --python $(bin)/python --no-deps --no-build-isolation --editable . || \
	    $(bin)/python -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@
# Spark is half a gigabyte, so its environment stands beside the ordinary one and holds both locks.
# pyspark comes as source only: it alone is built, by the setuptools of the lock.
spark_bin := .venv-spark/bin
spark_wheels := --only-binary :all: --no-binary pyspark --require-hashes
.venv-spark/ready: bootstrap.lock requirements.lock requirements-spark.lock | .venv/installed
	@test -e $@ || $(PYTHON) -m venv --clear .venv-spark
	@echo "setting up .venv-spark" >&2
	@$(bin)/uv pip sync --quiet --python $(spark_bin)/python $(spark_wheels) --build-constraints requirements-spark.lock \
	    bootstrap.lock requirements.lock requirements-spark.lock || { \
	    echo "uv could not; pip does it (slower)" >&2; \
	    sed -n '/^setuptools==/,/[^\\]$$/p' requirements-spark.lock >.venv-spark/build.lock; \
	    for each in bootstrap.lock .venv-spark/build.lock requirements.lock requirements-spark.lock; do \
	        $(spark_bin)/python -m pip install --quiet --no-deps --no-build-isolation $(spark_wheels) \
	            --requirement $$each || exit 1; done; }
	@touch $@
.venv-spark/installed: .venv-spark/ready pyproject.toml
	@$(bin)/uv pip install --quiet --offline --python $(spark_bin)/python --no-deps --no-build-isolation --editable . || \
	    $(spark_bin)/python -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@
# The oldest Spark has an environment with its own pyspark, which sees all else in that of the newest.
killed_once := test_a_driver_or_its_jvm_that_is_killed_in_a_task_leaves_no_process[jvm]
oldest_spark := session.py levels.py stream.py command.py 'kills.py::$(killed_once)'
spark_4_2 := .venv-spark-4.2
$(spark_4_2)/installed: requirements-spark-4.2.lock .venv-spark/installed
	@test -e $@ || $(PYTHON) -m venv --clear --without-pip $(spark_4_2)
	@echo "setting up $(spark_4_2)" >&2
	@$(spark_4_2)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >$(spark_4_2)/site
	@printf '%s\n' "$$($(spark_bin)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	    "$(CURDIR)/framework" >"$$(cat $(spark_4_2)/site)/newest.pth"
	@$(bin)/uv pip install --quiet --python $(spark_4_2)/bin/python --no-deps $(spark_wheels) \
	    --build-constraints requirements-spark.lock --requirement requirements-spark-4.2.lock || \
	    $(spark_bin)/python -m pip install --quiet --no-deps --no-build-isolation $(spark_wheels) \
	        --target "$$(cat $(spark_4_2)/site)" --upgrade --requirement requirements-spark-4.2.lock
	@for each in pytest tidegate; do \
	    sed '1s|.*|#!$(CURDIR)/$(spark_4_2)/bin/python|' $(spark_bin)/$$each >$(spark_4_2)/bin/$$each; \
	    chmod +x $(spark_4_2)/bin/$$each; done
	@touch $@
# The lowest versions that pyproject.toml allows, and the test tools of the lock. The rest of the tools is not needed.
# An older anyio has a plugin that the newest pytest refuses. No test uses it, so `test-lowest` leaves it out.
lowest_tests := tests/api tests/cli tests/dataplane tests/drivers tests/pipelines tests/testing \
	integration/cli/test_scripts.py --ignore tests/api/test_type_errors.py
lowest_tools := check-jsonschema|greenlet|pytest|pytest-timeout|pytest-xdist|hypothesis|psutil|mypy|ruff|hatchling|hatch-fancy-pypi-readme|editables
.venv-lowest/installed: Makefile pyproject.toml requirements.lock | .venv/installed
	@echo "setting up .venv-lowest" >&2
	@$(bin)/uv venv --quiet --clear --seed --python $(bin)/python .venv-lowest
	@$(bin)/uv pip compile --quiet --resolution lowest-direct --python-version 3.11 --extra broker \
	    --output-file .venv-lowest/lowest.txt pyproject.toml
	@sed -nE 's/^(($(lowest_tools))==[^ ]+).*/\1/p' requirements.lock >.venv-lowest/tools.txt
	@$(bin)/uv pip install --quiet --python .venv-lowest/bin/python --only-binary :all: \
	    --requirement .venv-lowest/lowest.txt --requirement .venv-lowest/tools.txt
	@$(bin)/uv pip install --quiet --offline --python .venv-lowest/bin/python --no-deps --no-build-isolation --editable .
	@touch $@
.PHONY: help demo demo-spark check docs test test-all test-spark test-spark-oldest test-lowest bench bench-spark soak golden images chaos sim ready lint types lock clean
