"""The schema of ONNX files compiled to C++, and the protobuf runtime that it needs.

The schema is that of the Python package `onnx`. Its protobuf package becomes lockstep.onnx, so the
classes are lockstep::onnx::ModelProto and so on (#include "onnx/onnx.pb.h"). Their names do not collide
with the copies of the schema in onnx, torch or tensorflow in the same process.

The runtime is protobuf's "lite" one, compiled from source with hidden symbols: Debian's archive is not
position independent, and its shared library would be visible to all code of the process.
"""

load(":debian_libraries.bzl", "require")
load(":python_libraries.bzl", "package_folder", "venv")

# Sources in src/google/protobuf of protobuf 21.6; its own build calls them protobuf_lite.
_LITE_SOURCES = [
    "any_lite.cc",
    "arena.cc",
    "arenastring.cc",
    "arenaz_sampler.cc",
    "extension_set.cc",
    "generated_enum_util.cc",
    "generated_message_tctable_lite.cc",
    "generated_message_util.cc",
    "implicit_weak_message.cc",
    "inlined_string_field.cc",
    "io/coded_stream.cc",
    "io/io_win32.cc",
    "io/strtod.cc",
    "io/zero_copy_stream.cc",
    "io/zero_copy_stream_impl.cc",
    "io/zero_copy_stream_impl_lite.cc",
    "map.cc",
    "message_lite.cc",
    "parse_context.cc",
    "repeated_field.cc",
    "repeated_ptr_field.cc",
    "stubs/bytestream.cc",
    "stubs/common.cc",
    "stubs/int128.cc",
    "stubs/status.cc",
    "stubs/statusor.cc",
    "stubs/stringpiece.cc",
    "stubs/stringprintf.cc",
    "stubs/structurally_valid.cc",
    "stubs/strutil.cc",
    "stubs/time.cc",
    "wire_format_lite.cc",
]

def _onnx_proto_impl(repository_ctx):
    protoc = require(repository_ctx, "/usr/bin/protoc", "protobuf-compiler")
    sources = venv(repository_ctx).get_child("src").get_child("protobuf").get_child("google")
    if not sources.exists:
        fail("@onnx_proto: {} is missing. Run `make setup`.".format(sources))
    repository_ctx.symlink(sources, "google")

    schema = repository_ctx.read(package_folder(repository_ctx, "onnx").get_child("onnx-ml.proto"))
    for expected in ["\npackage onnx;\n", "\noption optimize_for = LITE_RUNTIME;\n"]:
        if expected not in schema:
            fail("@onnx_proto: the installed onnx-ml.proto has no line `{}`.".format(expected.strip()))
    repository_ctx.file("onnx/onnx.proto", schema.replace("\npackage onnx;\n", "\npackage lockstep.onnx;\n"))
    result = repository_ctx.execute([protoc, "--proto_path=.", "--cpp_out=.", "onnx/onnx.proto"])
    if result.return_code != 0:
        fail("@onnx_proto: protoc failed: " + result.stderr)

    # Compiled as one unit, which takes a quarter of the time. Some sources leave the macros of port_def.inc defined.
    unit = ""
    for source in _LITE_SOURCES:
        path = "google/protobuf/" + source
        text = repository_ctx.read(path)
        unit += "#line 1 \"{}\"\n{}\n".format(path, text)
        if "port_def.inc" in text and "port_undef.inc" not in text:
            unit += "#include \"google/protobuf/port_undef.inc\"\n"
    repository_ctx.file("protobuf_lite.cc", unit)

    repository_ctx.file("BUILD", """cc_library(
    name = "onnx_proto",
    srcs = ["onnx/onnx.pb.cc"],
    hdrs = ["onnx/onnx.pb.h"],
    copts = ["-w"],
    includes = ["."],
    visibility = ["//visibility:public"],
    deps = [":protobuf_lite"],
)

cc_library(
    name = "protobuf_lite",
    srcs = ["protobuf_lite.cc"],
    hdrs = glob(["google/protobuf/**/*.h", "google/protobuf/**/*.inc"]),
    copts = ["-w", "-DHAVE_PTHREAD=1"],
    includes = ["."],
    linkopts = ["-pthread"],
)
""")

onnx_proto = repository_rule(implementation = _onnx_proto_impl, local = True)
