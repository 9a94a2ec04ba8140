"""A C++ library in the system's folders.

Its headers stay below /usr/include, which the compiler may read inside Bazel's sandbox. So LLVM's
2,000 headers are not linked into the sandbox of every compilation.
`hdrs` has one header that changes with the library's version, so that an upgrade recompiles.
"""

def _installed_library_impl(ctx):
    compilation_context = cc_common.create_compilation_context(
        headers = depset(ctx.files.hdrs),
        system_includes = depset(ctx.attr.include_folders),
    )
    linking_context = cc_common.create_linking_context(
        linker_inputs = depset([cc_common.create_linker_input(
            owner = ctx.label,
            user_link_flags = depset(ctx.attr.linkopts),
        )]),
    )
    return [
        DefaultInfo(files = depset(ctx.files.hdrs)),
        CcInfo(
            compilation_context = compilation_context,
            linking_context = linking_context,
        ),
    ]

installed_library = rule(
    implementation = _installed_library_impl,
    attrs = {
        "hdrs": attr.label_list(allow_files = True),
        "include_folders": attr.string_list(doc = "absolute paths below /usr/include"),
        "linkopts": attr.string_list(),
    },
    provides = [CcInfo],
)
