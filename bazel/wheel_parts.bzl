"""The repository @wheel_parts: what only the wheel is made with, from build/wheel/debian (tools/wheel/debian.py)."""

def _wheel_parts_impl(repository_ctx):
    checkout = repository_ctx.path(Label("@lockstep//:WORKSPACE")).dirname
    folder = checkout.get_child("build").get_child("wheel").get_child("debian")
    if not folder.get_child("made-by.py").exists:
        fail("@{}: {} is missing. Run `make wheel`.".format(repository_ctx.name, folder))
    for name in ["abseil/absl", "python/usr/include"]:
        repository_ctx.symlink(str(folder) + "/" + name, name)
    root = str(folder.get_child("root").realpath)
    repository_ctx.file("BUILD", """load("@lockstep//bazel:installed_library.bzl", "installed_library")

package(default_visibility = ["//visibility:public"])

# Links with Debian 11's glibc and GNU OpenMP, and with the archive of the C++ library.
installed_library(
    name = "older_glibc",
    hdrs = [],
    linkopts = [
        "-Wl,--sysroot={root}",
        "-L{root}/usr/lib/x86_64-linux-gnu",
        "-L{root}/lib/x86_64-linux-gnu",
        "-lpthread",
        "-ldl",
    ],
)

cc_library(
    name = "absl",
    srcs = glob(
        ["abseil/absl/**/*.cc", "abseil/absl/**/*.h", "abseil/absl/**/*.inc"],
        exclude = [
            "abseil/absl/**/*_test*",
            "abseil/absl/**/*test_*",
            "abseil/absl/**/*testing*",
            "abseil/absl/**/*benchmark*",
            "abseil/absl/**/*mock*",
            "abseil/absl/**/print_hash_of.cc",
            "abseil/absl/flags/**",
            "abseil/absl/random/**",
        ],
    ),
    copts = ["-w"],
    includes = ["abseil"],
)

cc_library(
    name = "python_headers",
    hdrs = glob(["python/usr/include/**/*.h"]),
    # Those of Debian include others by the name of the processor.
    includes = ["python/usr/include", "python/usr/include/python3.13"],
)
""".format(root = root))

_wheel_parts = repository_rule(implementation = _wheel_parts_impl, local = True)

def wheel_parts():
    """Declares the repository of this file."""
    _wheel_parts(name = "wheel_parts")
