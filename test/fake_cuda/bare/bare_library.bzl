"""A rule for stubs of NVIDIA's libraries."""

def bare_library(name, source, functions, hidden = "nothing", soname = None):
    """Builds the shared library `name`. Each function that the source does not define fails.

    Args:
      name: the name of the file.
      source: defines the functions that do something.
      functions: the list of all functions, a macro in the library's header.
      hidden: a function that the library lacks.
      soname: the name by which other libraries find it once it is loaded.
    """
    native.genrule(
        name = name + "_script",
        outs = [name + ".lds"],
        cmd = "echo '{ global: cu*; nccl*; nvrtc*; local: %s; };' > $@" % hidden,
    )
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = [source, "bare.h", "stubs.cc"],
        additional_linker_inputs = [name + ".lds"],
        linkopts = ["-Wl,--version-script=$(location %s.lds)" % name, "-ldl"] + (["-Wl,-soname," + soname] if soname else []),
        linkshared = True,
        local_defines = ["LOCKSTEP_BARE_FUNCTIONS=" + functions],
        deps = [
            "//backends/cuda:libraries",
            "//runtime/cuda:libraries",
        ],
    )
