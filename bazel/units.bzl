"""Libraries and tests whose sources are compiled several at a time.

A unit is the text of some sources, one after the other: what they include is parsed once for all of them, which is most
of what compiling one of them alone takes. Names in the unnamed namespaces of a target's sources must therefore differ.
With `--define=units=off` each source is compiled alone, and each header, so that an include that is missing shows.
"""

# For libraries whose code runs in each step: the runtime, and the kernels of backends.
HOT_COPTS = ["-O2"]

# The default number of sources in a unit. With fewer, a build from nothing takes longer; with more, a build after a
# change does.
_PER_UNIT = 10

def _unit(name, sources):
    # #line keeps the file names and lines in messages and in __FILE__.
    native.genrule(
        name = name + "_text",
        srcs = sources,
        outs = [name],
        cmd = "for file in $(SRCS); do echo \"#line 1 \\\"$$file\\\"\"; cat $$file; done > $@",
    )
    return name

def _including(name, header):
    native.genrule(name = name + "_text", srcs = [header], outs = [name], cmd = "echo '#include \"$(SRCS)\"' > $@")
    return name

def _compiled(name, srcs, hdrs, per_unit):
    """Returns what a cc_ rule takes as srcs: units of the sources, and the private headers among them."""
    sources = [source for source in srcs if source.endswith(".cc") or source.startswith(":")]
    private = [source for source in srcs if source not in sources]
    count = (len(sources) + per_unit - 1) // per_unit
    units = [
        _unit(
            "{}_unit{}.cc".format(name, i),
            sources[len(sources) * i // count:len(sources) * (i + 1) // count],
        )
        for i in range(count)
    ]
    headers = [
        _including("{}_alone_{}.cc".format(name, header.replace("/", "_")), header)
        for header in private + hdrs
        if header.endswith(".h")
    ]
    return private + select({
        "//bazel:each_source_alone": sources + headers,
        "//conditions:default": units,
    })

def unit_library(name, srcs = [], hdrs = [], per_unit = _PER_UNIT, **kwargs):
    """A cc_library whose sources are compiled as units.

    Args:
      name: of the library.
      srcs: sources, and headers that only they include; a rule that makes a source is named with its colon.
      hdrs: the headers that others may include.
      per_unit: how many sources a unit has at most.
      **kwargs: passed on to cc_library.
    """
    native.cc_library(
        name = name,
        srcs = _compiled(name, srcs, hdrs, per_unit),
        hdrs = hdrs,
        linkstatic = True,  # its shared library is not needed
        **kwargs
    )

def unit_test(name, srcs, per_unit = _PER_UNIT, **kwargs):
    """A cc_test of GoogleTest whose sources are compiled as units.

    Args:
      name: of the test.
      srcs: sources, and headers that only they include.
      per_unit: how many sources a unit has at most.
      **kwargs: passed on to cc_test; shard_count says how many processes share its cases.
    """
    native.cc_test(name = name, srcs = _compiled(name, srcs, [], per_unit), **kwargs)
