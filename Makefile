# make setup       .venv, prompts and target      make reproduce   and the laptop profile; tables, figures, report
# make test        set up, fetch, all tests          make quick   the fast ones
# make lab         JupyterLab on the explorer        make lint    ruff and clean notebooks
# make bench       the benchmark suite, 22 minutes (BENCH=quick: one); a record in runs/bench
# Variables: PROFILE=smoke|laptop|paper   PYTHON=python3.12   VENV=folder

PYTHON ?= python3
VENV ?= .venv
PROFILE ?= laptop
BIN := $(VENV)/bin
INPUTS := requirements.txt constraints.txt pyproject.toml
# A process on each core, up to four; a file's tests stay together and share what they set up.
TESTS = HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile
STRIP := --extra-keys "metadata.papermill cell.metadata.papermill" --keep-id

.PHONY: setup reproduce test quick bench lab lint clean

setup: $(VENV)/.runtime
	@$(BIN)/python -m tevlib fetch

reproduce: setup
	@$(BIN)/python -m tevlib run --profile $(PROFILE)

test: $(VENV)/.development
	@$(BIN)/python -m tevlib fetch
	$(TESTS) $(PYTEST)

quick: $(VENV)/.development
	$(TESTS) -m "not slow" $(PYTEST)

bench: $(VENV)/.development
	@$(BIN)/python -m tevlib fetch
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks $(if $(BENCH),--$(BENCH))

lab: $(VENV)/.runtime
	$(BIN)/jupyter lab notebooks/11_tree_explorer.ipynb

lint: $(VENV)/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbstripout --verify $(STRIP) notebooks/*.ipynb

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis runs/.partial

# A stamp is older than a requirement file when that file changed: pip then runs again, else not.
$(VENV)/.runtime: $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements.txt -e .
	@touch $@

$(VENV)/.development: $(INPUTS) requirements-dev.txt requirements-dflash.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt -e .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-dflash.txt
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
