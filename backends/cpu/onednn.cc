#include "backends/cpu/onednn.h"

#include <memory>

#include "backends/cpu/scoped_threads.h"
#include "backends/loops/channels_last.h"

namespace lockstep::cpu {

std::optional<dnnl::memory::data_type> OneDnnType(DType dtype) {
  switch (dtype) {
    case DType::kF32: return dnnl::memory::data_type::f32;
    case DType::kBF16: return dnnl::memory::data_type::bf16;
    case DType::kF16: return dnnl::memory::data_type::f16;
    default: return std::nullopt;
  }
}

dnnl::memory::desc RowMajor(const TensorType& type) {
  const auto dtype = OneDnnType(type.dtype);
  LOCKSTEP_CHECK(dtype.has_value()) << type.ToString();
  if (type.shape.rank() == 0) return {{1}, *dtype, dnnl::memory::dims{1}};
  return {type.shape.dims(), *dtype, type.shape.Strides()};
}

dnnl::memory::desc ChannelsLast(const TensorType& type) {
  const auto dtype = OneDnnType(type.dtype);
  LOCKSTEP_CHECK(dtype.has_value() && type.shape.rank() >= 3) << type.ToString();
  return {type.shape.dims(), *dtype, ChannelsLastStrides(type.shape.dims())};
}

std::string LayoutName(const dnnl::memory::desc& desc) {
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked) return "opaque";
  const dnnl::memory::dims dims = desc.get_dims(), padded = desc.get_padded_dims(), strides = desc.get_strides();
  const dnnl::memory::dims blocks = desc.get_inner_blks(), indices = desc.get_inner_idxs();
  bool row_major = blocks.empty() && dims == padded;
  int64_t expected = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    row_major = row_major && (strides[i] == expected || dims[i] == 1);
    expected *= dims[i];
  }
  if (row_major) return "";
  std::string name;
  for (size_t i = 0; i < blocks.size(); ++i) {
    name += std::to_string(blocks[i]) + static_cast<char>('a' + indices[i]);
  }
  for (size_t i = 0; i < strides.size(); ++i) name += (i ? "," : name.empty() ? "s" : "s") + std::to_string(strides[i]);
  return name;
}

dnnl::primitive_attr DefaultAttributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

namespace {

// The state of one kernel: memory objects whose addresses are set in each run, and the argument list for oneDNN's C
// interface, which unlike the C++ interface does not allocate.
class PrimitiveRunner {
 public:
  PrimitiveRunner(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad, const dnnl::engine& engine,
                  std::vector<PrimitiveArg> args)
      : primitive_(primitive), stream_(engine), args_(std::move(args)), threads_(omp_get_max_threads()) {
    for (const PrimitiveArg& arg : args_) AddMemory(arg.arg, arg.desc, engine);
    if (scratchpad.get_size() > 0) AddMemory(DNNL_ARG_SCRATCHPAD, scratchpad, engine);
  }

  absl::Status operator()(const KernelArgs& args) {
    const ScopedThreads threads(threads_);
    dnnl_status_t status = dnnl_success;
    for (size_t i = 0; i < memories_.size() && status == dnnl_success; ++i) {
      status = dnnl_memory_set_data_handle(memories_[i].get(), Address(args, i));
    }
    if (status == dnnl_success) {
      status = dnnl_primitive_execute(primitive_.get(), stream_.get(), static_cast<int>(exec_args_.size()),
                                      exec_args_.data());
    }
    if (status == dnnl_success) return absl::OkStatus();
    return Internal() << "oneDNN failed with status " << static_cast<int>(status);
  }

 private:
  void AddMemory(int arg, const dnnl::memory::desc& desc, const dnnl::engine& engine) {
    memories_.push_back(dnnl::memory(desc, engine, DNNL_MEMORY_NONE));
    exec_args_.push_back({arg, memories_.back().get()});
  }

  void* Address(const KernelArgs& args, size_t i) const {
    if (i == args_.size()) return args.scratch;
    const PrimitiveArg& arg = args_[i];
    return (arg.is_write ? args.writes : args.reads)[arg.position] + arg.offset;
  }

  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<PrimitiveArg> args_;
  int threads_;  // the number of threads that the primitive was planned for
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> exec_args_;
};

}  // namespace

Kernel PrimitiveKernel(std::string name, const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
                       const dnnl::engine& engine, const std::vector<PrimitiveArg>& args) {
  Kernel kernel;
  kernel.name = std::move(name);
  kernel.scratch_bytes = scratchpad.get_size();
  kernel.run = PrimitiveRunner(primitive, scratchpad, engine, args);
  return kernel;
}

}  // namespace lockstep::cpu
