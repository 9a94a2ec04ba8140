"""A Python extension module that shares its process with torch, TensorFlow and others."""

load(":units.bzl", "unit_library")

def python_extension(name, srcs, hdrs, deps, nanobind = "@nanobind", tags = [], **kwargs):
    """Builds the extension module `<name>.so`; `:<name>` is that file.

    Only PyInit_* is exported, so our symbols cannot replace those of another library.
    oneDNN's library is found in .venv if the module is in python_bindings/lockstep/ of a checkout, and
    in the environment's lib folder if it is in site-packages/lockstep/.

    Args:
      name: the name of the module, with the leading underscore.
      srcs: the C++ sources.
      hdrs: the headers that only these include.
      deps: the C++ libraries.
      nanobind: the library of nanobind, which decides for which Pythons the module is.
      tags: of the module.
      **kwargs: passed on to cc_binary.
    """
    unit_library(
        name = name + "_functions",
        srcs = srcs + hdrs,
        tags = tags,
        deps = deps + [nanobind],
        alwayslink = True,
    )
    native.cc_binary(
        name = name + ".so",
        additional_linker_inputs = ["//bazel:python_extension.lds"],
        linkopts = [
            "-Wl,--version-script=$(location //bazel:python_extension.lds)",
            "-Wl,-rpath,'$$ORIGIN/../../.venv/lib'",
            "-Wl,-rpath,'$$ORIGIN/../../..'",
        ],
        linkshared = True,
        tags = tags,
        deps = [":{}_functions".format(name)] + select({
            "//bazel:for_a_wheel": ["//bazel:older_glibc", "@wheel_parts//:absl", "@wheel_parts//:older_glibc"],
            "//conditions:default": [],
        }),
        **kwargs
    )
    native.filegroup(
        name = name,
        srcs = [name + ".so"],
        tags = tags,
        visibility = kwargs.get("visibility"),
    )
