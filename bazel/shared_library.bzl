"""A shared library of the C++ code that the extension module and the tests consist of. Nothing is compiled again."""

# The compiler hides all symbols (.bazelrc). In a copy of the objects, this makes the functions and classes of our
# namespace visible that have one definition, so that programs can link with them. Inline functions stay hidden, because
# programs have their own, and so does the schema of ONNX files.
_SHOW = """set -e; PATH=/usr/bin:/bin
out=$1; shift
ld -r --strip-debug --whole-archive "$@" -o $out.hidden
nm -g --defined-only $out.hidden |
  awk '$2 ~ /[TDBR]/ && $3 ~ /^_ZNK?[OR]?8lockstep/ && $3 !~ /^_ZNK?8lockstep4onnx/ || $3 ~ /^_ZT[VIS]N8lockstep/ {print $3}' |
  grep -v '^_ZT[VIS]N8lockstep4onnx' > $out.names
llvm-objcopy-19 --set-symbols-visibility=$out.names=default $out.hidden $out
rm $out.hidden $out.names"""

def _shared_library_impl(ctx):
    everything = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    archives, shared, flags = [], [], []
    for linker_input in everything.linking_context.linker_inputs.to_list():
        for library in linker_input.libraries:
            if library.pic_static_library:
                archives.append(library.pic_static_library)
            else:
                shared.append(library.dynamic_library)
        flags += linker_input.user_link_flags

    objects = ctx.actions.declare_file(ctx.label.name + ".o")
    ctx.actions.run_shell(
        outputs = [objects],
        inputs = archives,
        arguments = [ctx.actions.args().add(objects).add_all(archives)],
        command = _SHOW,
        mnemonic = "ShowSymbols",
    )
    library = ctx.actions.declare_file(ctx.attr.file)
    ctx.actions.run_shell(
        outputs = [library],
        inputs = [objects] + shared,
        # References within the library stay within it, as the compiler has assumed.
        arguments = [ctx.actions.args().add("-o", library).add(objects).add_all(shared)
            .add_all(["-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,-s", "-Wl,-soname," + ctx.attr.file])
            .add_all(ctx.attr.linkopts).add_all(flags)],
        command = "PATH=/usr/bin:/bin g++ \"$@\"",
        mnemonic = "LinkShared",
    )
    return [DefaultInfo(files = depset([library]))]

shared_library = rule(
    implementation = _shared_library_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "file": attr.string(doc = "the name of the library's file"),
        "linkopts": attr.string_list(),
    },
)
