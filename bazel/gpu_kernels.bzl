"""Kernels for GPUs: C++ sources that clang compiles to PTX, embedded in a C++ source as text."""

# PTX for the oldest supported GPUs, in the oldest PTX version that supports them; drivers accept it for all later GPUs.
# --cuda-path names no folder: with a CUDA installation clang would use the PTX version of that, and without one a
# version that lacks shuffles. -ffp-contract=off keeps a product and a sum from being fused into one rounding.
# -fconvergent-functions keeps instructions of whole warps in assembly from moving into branches. The language is CUDA,
# without its headers, because only CUDA has attributes that limit a kernel's registers. The pragma compiles all functions
# for GPUs.
_CLANG = "$(location @clang//:clang++) -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc -nocudalib " + \
         "--cuda-path=/none --cuda-feature=+ptx70 -std=c++20 -O2 -ffreestanding -fno-exceptions -fno-rtti -ffp-contract=off -fconvergent-functions -Wall -Wextra -Werror -I."

def gpu_kernels(name, srcs, hdrs, out, header, function):
    """Generates the C++ source `out` with a function that maps the name of a source, without its ending, to its PTX.

    Args:
      name: the name of the rule that generates `out`.
      srcs: the sources, one for each family of kernels.
      hdrs: the headers that they include.
      out: the C++ source to generate.
      header: the header that declares `function`.
      function: the function with its namespaces; its type is std::string_view(std::string_view).
    """
    texts = []
    for src in srcs:
        text = src[:-len(".cc")] + ".ptx"
        texts.append(text)
        native.genrule(
            name = text + "_",
            srcs = [src] + hdrs,
            outs = [text],
            cmd = "{{ echo '#pragma clang force_cuda_host_device begin'; echo '#include \"$(location {})\"'; }} | ".format(src) +
                  _CLANG + " -S - -o $@",
            tools = ["@clang//:clang++"],
        )
    cases = " ".join([
        "echo '  if (name == \"{0}\") return R\"PTX('; cat $(location {0}.ptx); echo ')PTX\";';".format(text[:-len(".ptx")])
        for text in texts
    ])
    native.genrule(
        name = name,
        srcs = texts,
        outs = [out],
        cmd = "{{ echo '#include \"{}/{}\"'; echo 'std::string_view {}(std::string_view name) {{'; {} ".format(
            native.package_name(),
            header,
            function,
            cases,
        ) + "echo '  return {};'; echo '}'; } > $@",
    )
