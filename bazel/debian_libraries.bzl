"""Repositories for the libraries that come as Debian packages."""

_LIB = "/usr/lib/x86_64-linux-gnu"

def require(repository_ctx, path, package):
    """Returns `path`, or fails with the name of the package that provides it."""
    found = repository_ctx.path(path)
    if not found.exists:
        fail("@{}: {} is missing. Run `make setup`, or install the Debian package {}.".format(
            repository_ctx.name,
            path,
            package,
        ))
    return found

def _installed_library_build(name, linkopts, include_folders = [], wheel_linkopts = None):
    """Returns the text of a BUILD file. `wheel_linkopts` replace `linkopts` where a wheel is built."""
    linkopts = repr(linkopts)
    if wheel_linkopts != None:
        linkopts = "select({{\"@lockstep//bazel:for_a_wheel\": {}, \"//conditions:default\": {}}})".format(
            repr(wheel_linkopts),
            linkopts,
        )
    return """load("@lockstep//bazel:installed_library.bzl", "installed_library")

installed_library(
    name = "{name}",
    hdrs = ["version.h"],
    include_folders = {include_folders},
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
""".format(name = name, include_folders = repr(include_folders), linkopts = linkopts)

def _absl_impl(repository_ctx):
    # The header with the release's inline namespace.
    repository_ctx.symlink(require(repository_ctx, "/usr/include/absl/base/options.h", "libabsl-dev"), "version.h")
    libraries = sorted([
        "-l:" + entry.basename
        for entry in repository_ctx.path(_LIB).readdir()
        if entry.basename.startswith("libabsl_") and entry.basename.endswith(".so")
    ])

    # Links with all of Abseil; a binary records only the libraries that it uses. (Debian's archives are not position
    # independent, so the extension module and the tests link Abseil dynamically.)
    linkopts = ["-Wl,--push-state,--as-needed"] + libraries + ["-Wl,--pop-state"]
    repository_ctx.file("BUILD", _installed_library_build("absl", linkopts, wheel_linkopts = []))

_absl = repository_rule(implementation = _absl_impl, local = True)

def _static_llvm(repository_ctx):
    """Returns the linker options for the parts of LLVM that are used, from its archives."""
    config = require(repository_ctx, "/usr/bin/llvm-config-19", "llvm-19-dev")
    asked = repository_ctx.execute([config, "--link-static", "--libdir", "--libs", "orcjit", "passes", "x86", "nvptx"])
    if asked.return_code != 0:
        fail("@{}: {} failed: {}".format(repository_ctx.name, config, asked.stderr))
    folder, libraries = asked.stdout.strip().split("\n")
    archives = [folder + "/lib" + name[len("-l"):] + ".a" for name in libraries.split(" ")]
    return archives + ["-l:libz.so.1", "-l:libzstd.so.1"]

def _llvm_impl(repository_ctx):
    config = "/usr/include/llvm-19/llvm/Config/llvm-config.h"
    repository_ctx.symlink(require(repository_ctx, config, "llvm-19-dev"), "version.h")
    require(repository_ctx, _LIB + "/libLLVM.so.19.1", "libllvm19")
    repository_ctx.file("BUILD", _installed_library_build(
        "llvm",
        # Does not use -L/usr/lib/llvm-19/lib: if libomp-dev is installed, the libgomp.so of that folder is LLVM's
        # OpenMP, and a process would have two thread pools.
        linkopts = ["-l:libLLVM.so.19.1"],
        wheel_linkopts = _static_llvm(repository_ctx),
        include_folders = ["/usr/include/llvm-19", "/usr/include/llvm-c-19"],
    ))

_llvm = repository_rule(implementation = _llvm_impl, local = True)

def _clang_impl(repository_ctx):
    repository_ctx.symlink(require(repository_ctx, "/usr/bin/clang++-19", "clang-19"), "clang++")
    repository_ctx.file("BUILD", 'exports_files(["clang++"])\n')

_clang = repository_rule(implementation = _clang_impl, local = True)

def _openmpi_impl(repository_ctx):
    root = _LIB + "/openmpi"
    require(repository_ctx, root + "/include/mpi.h", "libopenmpi-dev")
    require(repository_ctx, "/usr/bin/mpirun", "openmpi-bin")
    for header in ["mpi.h", "mpi_portable_platform.h", "mpi-ext.h"]:
        repository_ctx.symlink(root + "/include/" + header, "include/" + header)
    repository_ctx.symlink(root + "/include/openmpi/mpiext", "include/openmpi/mpiext")
    repository_ctx.file("BUILD", """cc_library(
    name = "mpi",
    hdrs = glob(["include/**/*.h"]),
    # The C interface alone: Open MPI's deprecated C++ one would be another library.
    defines = ["OMPI_SKIP_MPICXX"],
    includes = ["include"],
    linkopts = ["-L{}/lib", "-lmpi"],
    visibility = ["//visibility:public"],
)
""".format(root))

_openmpi = repository_rule(implementation = _openmpi_impl, local = True)

def _openmp_impl(repository_ctx):
    # GNU OpenMP, which the oneDNN of .venv also uses, so that a process has one thread pool. Compile with `copts =
    # OPENMP_COPTS` of //bazel:openmp.bzl.
    repository_ctx.file("BUILD", """cc_library(
    name = "openmp",
    linkopts = ["-fopenmp"],
    visibility = ["//visibility:public"],
)
""")

_openmp = repository_rule(implementation = _openmp_impl, local = True)

def _googletest_impl(repository_ctx):
    repository_ctx.symlink(require(repository_ctx, "/usr/include/gtest/gtest.h", "libgtest-dev"), "version.h")
    require(repository_ctx, "/usr/include/gmock/gmock.h", "libgmock-dev")
    require(repository_ctx, _LIB + "/libgmock.a", "libgmock-dev")
    gtest = ["-l:libgmock.a", "-l:libgtest.a", "-pthread"]
    load_once = _installed_library_build("gtest", gtest)
    main = _installed_library_build("gtest_main", ["-l:libgmock_main.a"] + gtest)
    repository_ctx.file("BUILD", load_once + main[main.index("\n\n") + 1:])

_googletest = repository_rule(implementation = _googletest_impl, local = True)

def _benchmark_impl(repository_ctx):
    header = "/usr/include/benchmark/benchmark.h"
    repository_ctx.symlink(require(repository_ctx, header, "libbenchmark-dev"), "version.h")
    repository_ctx.file("BUILD", _installed_library_build("benchmark", ["-lbenchmark", "-pthread"]))

_benchmark = repository_rule(implementation = _benchmark_impl, local = True)

def _bazel_rules_impl(repository_ctx):
    root = require(repository_ctx, repository_ctx.attr.path, repository_ctx.attr.package)
    for entry in root.readdir():
        if entry.basename != "WORKSPACE":
            repository_ctx.symlink(entry, entry.basename)

# Rules of Bazel itself, from Debian's packages. Bazel would otherwise download them.
_bazel_rules = repository_rule(
    implementation = _bazel_rules_impl,
    attrs = {
        "package": attr.string(mandatory = True),
        "path": attr.string(mandatory = True),
    },
    local = True,
)

def debian_libraries():
    """Declares every repository of this file."""
    _absl(name = "absl")
    _llvm(name = "llvm")
    _clang(name = "clang")
    _openmpi(name = "openmpi")
    _openmp(name = "openmp")
    _googletest(name = "googletest")
    _benchmark(name = "benchmark")
    _bazel_rules(name = "rules_java", path = "/usr/share/bazel/rules/java", package = "bazel-rules-java")
    _bazel_rules(name = "rules_proto", path = "/usr/share/bazel/rules/proto", package = "bazel-rules-proto")
    _bazel_rules(name = "platforms", path = "/usr/share/bazel/platforms", package = "bazel-platforms")
