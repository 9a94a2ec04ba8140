"""Repositories for the libraries in .venv: the interpreter's headers, nanobind, oneDNN, MPICH."""

def venv(repository_ctx):
    """Returns the path of .venv, or fails with a message that says how to make it."""

    # Reading the pinned versions makes Bazel run this again when they change.
    for versions in ["requirements.txt", "requirements-source.txt"]:
        repository_ctx.path(Label("@lockstep//:" + versions))
    path = repository_ctx.path(Label("@lockstep//:WORKSPACE")).dirname.get_child(".venv")
    if not path.get_child("bin").get_child("python").exists:
        fail("@{}: there is no .venv. Run `make setup`.".format(repository_ctx.name))
    return path

def ask_python(repository_ctx, expression):
    """Evaluates an expression with the interpreter of .venv; `sysconfig` and `importlib` are imported."""
    result = repository_ctx.execute([
        venv(repository_ctx).get_child("bin").get_child("python"),
        "-c",
        "import importlib.util, sysconfig; print({})".format(expression),
    ])
    if result.return_code != 0:
        fail("@{}: .venv/bin/python failed on {}: {}. Run `make setup`.".format(
            repository_ctx.name,
            expression,
            result.stderr,
        ))
    return result.stdout.strip()

def package_folder(repository_ctx, module):
    """Returns the folder of an installed Python package."""
    folder = ask_python(repository_ctx, "importlib.util.find_spec('{}').submodule_search_locations[0]".format(module))
    return repository_ctx.path(folder)

def _python_impl(repository_ctx):
    include = repository_ctx.path(ask_python(repository_ctx, "sysconfig.get_path('include')"))
    if not include.get_child("Python.h").exists:
        fail("@python: {}/Python.h is missing. Run `make setup`, or install python3-dev.".format(include))
    repository_ctx.symlink(include, "include")

    # For rules that generate test data. It is a script, because Python finds its packages by the path by which it is
    # called.
    interpreter = venv(repository_ctx).get_child("bin").get_child("python")
    repository_ctx.file("interpreter", "#!/bin/sh\nexec '{}' \"$@\"\n".format(interpreter), executable = True)
    repository_ctx.file("BUILD", """exports_files(["interpreter"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""")

_python = repository_rule(implementation = _python_impl, local = True)

def _nanobind_impl(repository_ctx):
    root = package_folder(repository_ctx, "nanobind")
    for folder in ["ext", "include", "src"]:
        repository_ctx.symlink(root.get_child(folder), folder)
    repository_ctx.file("BUILD", """[cc_library(
    name = name,
    srcs = ["src/nb_combined.cpp"] + glob(["src/*.h"]),
    hdrs = glob(["include/**/*.h", "ext/robin_map/include/**/*.h"]),
    copts = ["-fno-strict-aliasing", "-Wno-all", "-Wno-extra"],
    defines = defines,
    includes = ["include"],
    # nb_combined.cpp includes the other sources.
    textual_hdrs = glob(["src/*.cpp"], exclude = ["src/nb_combined.cpp"]),
    deps = [":robin_map", headers],
    visibility = ["//visibility:public"],
) for name, headers, defines in [
    ("nanobind", "@python//:headers", []),
    # For the stable ABI: the functions of Python 3.12 that all later versions have.
    ("nanobind_abi3", "@wheel_parts//:python_headers", ["Py_LIMITED_API=0x030C0000"]),
]]

cc_library(
    name = "robin_map",
    hdrs = glob(["ext/robin_map/include/**/*.h"]),
    includes = ["ext/robin_map/include"],
)
""")

_nanobind = repository_rule(implementation = _nanobind_impl, local = True)

def _onednn_impl(repository_ctx):
    root = venv(repository_ctx)
    header = root.get_child("include").get_child("oneapi").get_child("dnnl").get_child("dnnl.hpp")
    library = root.get_child("lib").get_child("libdnnl.so.3")
    for path, package in [(header, "onednn-devel-cpu-gomp"), (library, "onednn-cpu-gomp")]:
        if not path.exists:
            fail("@onednn: {} is missing. Run `make setup`, or install the Python package {}.".format(path, package))
    repository_ctx.symlink(header.dirname, "include/oneapi/dnnl")
    repository_ctx.symlink(library, "lib/libdnnl.so.3")
    repository_ctx.file("BUILD", """cc_import(
    name = "libdnnl",
    shared_library = "lib/libdnnl.so.3",
)

cc_library(
    name = "onednn",
    hdrs = glob(["include/**/*.h", "include/**/*.hpp"]),
    includes = ["include"],
    deps = [":libdnnl"],
    visibility = ["//visibility:public"],
)
""")

_onednn = repository_rule(implementation = _onednn_impl, local = True)

def _mpich_impl(repository_ctx):
    root = venv(repository_ctx).get_child("src").get_child("mpich")
    if not root.exists:
        fail("@mpich: {} is missing. Run `make setup`.".format(root))
    for folder in ["bin", "lib"]:
        repository_ctx.symlink(root.get_child(folder), folder)
    repository_ctx.symlink(root.get_child("include").get_child("mpi.h"), "mpich/mpi.h")
    repository_ctx.symlink(root.get_child("include").get_child("mpi_proto.h"), "mpich/mpi_proto.h")
    repository_ctx.symlink(root.get_child("include").get_child("mpi_abi.h"), "standard/mpi.h")
    repository_ctx.file("BUILD", """[cc_library(
    name = name,
    hdrs = glob([name + "/*.h"]),
    includes = [name],
    visibility = ["//visibility:public"],
) for name in ["mpich", "standard"]]

# mpiexec and the libraries, which find each other by their paths.
filegroup(
    name = "files",
    srcs = glob(["bin/*", "lib/**"]),
    visibility = ["//visibility:public"],
)
""")

_mpich = repository_rule(implementation = _mpich_impl, local = True)

def python_libraries():
    """Declares every repository of this file."""
    _python(name = "python")
    _nanobind(name = "nanobind")
    _onednn(name = "onednn")
    _mpich(name = "mpich")
