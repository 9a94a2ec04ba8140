// Matrix products: with oneDNN for its types, with plain loops for others.

#include "core/ops/matmul.h"

#include <algorithm>

#include "backends/cpu/emitters.h"

namespace lockstep::cpu {
namespace {

// The descriptor of a row-major operand, with its last two dimensions transposed if the op says so.
dnnl::memory::desc OperandDesc(DType dtype, const Shape& shape, bool transpose) {
  dnnl::memory::dims dims = shape.dims(), strides = shape.Strides();
  if (transpose) {
    std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
    std::swap(strides[strides.size() - 1], strides[strides.size() - 2]);
  }
  return {dims, *OneDnnType(dtype), strides};
}

absl::StatusOr<Kernel> OneDnnMatMul(const Node& node, const dnnl::engine& engine) {
  return CallOneDnn("matmul", [&] {
    const ops::MatMulForm form(node);
    const DType dtype = node.operand(0).dtype();
    const dnnl::memory::desc a = OperandDesc(dtype, form.a, form.transpose_a);
    const dnnl::memory::desc b = OperandDesc(dtype, form.b, form.transpose_b);
    const dnnl::memory::desc y = RowMajor({node.type().dtype, form.y});
    const dnnl::matmul::primitive_desc pd(engine, a, b, y, DefaultAttributes());
    return PrimitiveKernel("onednn.matmul", dnnl::matmul(pd), pd.scratchpad_desc(), engine,
                           {{DNNL_ARG_SRC, false, 0, a}, {DNNL_ARG_WEIGHTS, false, 1, b}, {DNNL_ARG_DST, true, 0, y}});
  });
}

// A product of m x k and k x n matrices with the given strides and a row-major result.
struct PlainProduct {
  int64_t m, n, k, a_row, a_column, b_row, b_column;

  template <typename T, typename Result>
  void Run(const T* a, const T* b, Result* y) const {
    std::vector<Accumulator<T>> sums(static_cast<size_t>(n));
    for (int64_t i = 0; i < m; ++i) {
      std::fill(sums.begin(), sums.end(), Accumulator<T>{0});
      for (int64_t l = 0; l < k; ++l) {
        const auto factor = static_cast<Accumulator<T>>(a[i * a_row + l * a_column]);
        const T* row = b + l * b_row;
        for (int64_t j = 0; j < n; ++j)
          sums[static_cast<size_t>(j)] += factor * static_cast<Accumulator<T>>(row[j * b_column]);
      }
      for (int64_t j = 0; j < n; ++j) y[i * n + j] = ConvertElement<Result>(sums[static_cast<size_t>(j)]);
    }
  }
};

Kernel PlainMatMul(const Node& node) {
  const ops::MatMulForm form(node);
  const int64_t rank = form.y.rank(), m = form.y[rank - 2], n = form.y[rank - 1], k = form.a[form.contracted_a];
  const bool ta = form.transpose_a, tb = form.transpose_b;
  const PlainProduct product{m, n, k, ta ? 1 : k, ta ? m : 1, tb ? 1 : n, tb ? k : 1};
  int64_t batches = 1;
  for (int64_t i = 0; i < rank - 2; ++i) batches *= form.y[i];
  const DType dtype = node.operand(0).dtype();
  const bool is_wide = node.type().dtype != dtype;
  Kernel kernel;
  kernel.name = "loop.matmul";
  kernel.run = [=](const KernelArgs& args) {
    DispatchDType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int64_t i = 0; i < batches; ++i) {
        const T *a = args.read<T>(0) + i * m * k, *b = args.read<T>(1) + i * k * n;
        if (is_wide) product.Run(a, b, args.write<float>(0) + i * m * n);
        else product.Run(a, b, args.write<T>(0) + i * m * n);
      }
    });
    return absl::OkStatus();
  };
  return kernel;
}

}  // namespace

absl::StatusOr<Kernel> MatMulKernel(const Node& node, const EmitContext& c) {
  if (CheckForOneDnn(node).ok()) return OneDnnMatMul(node, c.engine());
  return PlainMatMul(node);
}

absl::Status EmitMatMul(const Node& node, EmitContext& c) {
  RETURN_IF_ERROR(CheckForOneDnn(node));
  ASSIGN_OR_RETURN(Kernel kernel, OneDnnMatMul(node, c.engine()));
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  c.Add(node, std::move(kernel), std::move(reads), {c.Write(node)});
  return absl::OkStatus();
}

absl::Status EmitMatMulLoop(const Node& node, EmitContext& c) {
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  c.Add(node, PlainMatMul(node), std::move(reads), {c.Write(node)});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
