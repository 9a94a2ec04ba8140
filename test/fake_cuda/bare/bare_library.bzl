"""A fake of one of NVIDIA's libraries."""

def bare_library(name, source, functions, hidden = "nothing", soname = None):
    """Builds the shared library `name` of a source, and of a function that fails for each that the source does not define.

    Args:
      name: of the file.
      source: what its functions do, as far as they do anything.
      functions: the list of all functions, a macro of the library's header.
      hidden: a function that it lacks.
      soname: by which others find it once it is loaded.
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
