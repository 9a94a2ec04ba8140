"""Libraries and tests whose sources are compiled several at a time.

A unit is the text of several sources, one after the other. The headers that they include are parsed once, which is most
of the time to compile a source alone. Names in the unnamed namespaces of a target's sources must therefore differ.
With `--define=units=off` each source and each header is compiled alone, to find missing includes.
"""

# For libraries whose code runs in each step: the runtime, and the kernels of backends. A switch without a default there
# must handle every enumerator, such as every collective.
HOT_COPTS = ["-O2", "-Werror=switch"]

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
    """Returns the srcs of a cc_ rule: units of the sources, and the private headers among `srcs`."""
    sources = [source for source in srcs if source.endswith(".cc") or ":" in source]
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

def unit_library(name, srcs = None, hdrs = None, per_unit = _PER_UNIT, **kwargs):
    """A cc_library whose sources are compiled as units.

    Args:
      name: the name of the library.
      srcs: sources, and headers that only they include; the name of a rule that generates a source begins with a colon.
        Without `srcs` and `hdrs` the library has all sources and headers of the folder but tests.
      hdrs: the headers that others may include.
      per_unit: the maximum number of sources in a unit.
      **kwargs: passed on to cc_library.
    """
    if srcs == None and hdrs == None:
        srcs = native.glob(["*.cc"], exclude = ["*_test.cc"])
        hdrs = native.glob(["*.h"])
    srcs, hdrs = srcs or [], hdrs or []
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
      name: the name of the test.
      srcs: sources, headers that only they include, and labels of filegroups of sources.
      per_unit: the maximum number of sources in a unit; a filegroup counts as one.
      **kwargs: passed on to cc_test; shard_count is the number of processes that split its cases.
    """
    native.cc_test(name = name, srcs = _compiled(name, srcs, [], per_unit), **kwargs)
