# book    build the site into _build/html; a warning or a raising cell fails it
# test    run the tests
# quick   run the tests that need no browser, no execution of a chapter, no N above 320 and no machine
#         code of every kernel: the loop while editing
# report  print the lesson's table for this machine
# record  measure on this GPU and write book/evidence/
# mutants  change every kernel in thousands of small ways, gate each on the host, write book/evidence/
# notebooks  put every chapter into its canonical form
# estimate   count what every chapter runs and write how long that takes on a T4
# readme     write the recorded times into the README's table
# repository URL=https://github.com/OWNER/NAME REVISION=main
#            write the repository's address into _config.yml and every chapter's first cell
#
# Each sets up what it needs: .venv, made again when a requirements file changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
WORKERS := -n 3 --dist loadgroup --no-loadscope-reorder

book: $(VENV)/book
	rm -rf _build/html _build/.doctrees _build/jupyter_execute
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter-book build . -W -n --keep-going

test: $(VENV)/test
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest $(WORKERS)

quick: $(VENV)/test
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest $(WORKERS) -m "not slow"

report record mutants: $(VENV)/book
	cd book && ../$(BIN)/python -m lesson $@

notebooks: $(VENV)/book
	cd book && ../$(BIN)/python -m tools.notebooks

estimate: $(VENV)/book
	cd book && ../$(BIN)/python -m tools.estimate

readme: $(VENV)/book
	cd book && ../$(BIN)/python -m tools.readme

repository: $(VENV)/book
	cd book && ../$(BIN)/python -m tools.repository "$(URL)" "$(REVISION)"

clean:
	rm -rf _build

$(VENV)/book: requirements.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/test: requirements-test.txt requirements-mpi.txt $(VENV)/book
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt \
	  -r requirements-mpi.txt
	touch $@

.PHONY: book test quick report record mutants notebooks estimate readme repository clean
