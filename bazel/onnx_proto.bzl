"""The schema of ONNX files, compiled to C++.

The schema is the one in the Python package `onnx`. Its protobuf package becomes lockstep.onnx, so the
classes are lockstep::onnx::ModelProto and so on (#include "onnx/onnx.pb.h"), and a process that also
holds the onnx, torch or tensorflow copy of the schema has no name twice.
"""

load(":debian_libraries.bzl", "require")
load(":python_libraries.bzl", "package_folder")

def _onnx_proto_impl(repository_ctx):
    protoc = require(repository_ctx, "/usr/bin/protoc", "protobuf-compiler")
    require(repository_ctx, "/usr/include/google/protobuf/message_lite.h", "libprotobuf-dev")
    schema = repository_ctx.read(package_folder(repository_ctx, "onnx").get_child("onnx-ml.proto"))
    for expected in ["\npackage onnx;\n", "\noption optimize_for = LITE_RUNTIME;\n"]:
        if expected not in schema:
            fail("@onnx_proto: the installed onnx-ml.proto has no line `{}`.".format(expected.strip()))
    repository_ctx.file("onnx/onnx.proto", schema.replace("\npackage onnx;\n", "\npackage lockstep.onnx;\n"))
    result = repository_ctx.execute([protoc, "--proto_path=.", "--cpp_out=.", "onnx/onnx.proto"])
    if result.return_code != 0:
        fail("@onnx_proto: protoc failed: " + result.stderr)
    repository_ctx.file("BUILD", """cc_library(
    name = "onnx_proto",
    srcs = ["onnx/onnx.pb.cc"],
    hdrs = ["onnx/onnx.pb.h"],
    copts = ["-Wno-all", "-Wno-extra"],
    includes = ["."],
    linkopts = ["-lprotobuf-lite", "-pthread"],
    visibility = ["//visibility:public"],
)
""")

onnx_proto = repository_rule(implementation = _onnx_proto_impl, local = True)
