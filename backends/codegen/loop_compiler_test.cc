#include "backends/codegen/loop_compiler.h"

#include <cmath>

#include "backends/codegen/loop_test_support.h"
#include "core/interpreter.h"
#include "core/op_def.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

using loop_test::CheckLoop;
using loop_test::LoopCase;
using loop_test::Values;

constexpr int64_t kSizes[] = {0, 1, 7, 8, 9, 1000, 100003};

std::string Type(DType dtype, int64_t size) { return std::string(DTypeName(dtype)) + "[" + std::to_string(size) + "]"; }

std::string Unary(const std::string& op, DType dtype, int64_t size) {
  const std::string type = Type(dtype, size);
  return "graph @f(%x: " + type + ") -> (y: " + type + ") {\n %y = " + op + " %x : " + type + "\n return %y\n}";
}

std::string Binary(const std::string& op, DType dtype, int64_t size, const std::string& attributes = "",
                   DType result = DType::kF32) {
  const std::string type = Type(dtype, size), result_type = attributes.empty() ? type : Type(result, size);
  return "graph @f(%x: " + type + ", %y: " + type + ") -> (z: " + result_type + ") {\n %z = " + op + " %x, %y " +
         attributes + " : " + result_type + "\n return %z\n}";
}

// Error bounds against double arithmetic: in f32 the op states its bound; f64 has libm's; 16-bit floats round the f32
// result.
TEST(LoopCompiler, UnaryOpsOfFloats) {
  ASSERT_GT(ElementwiseOpsOfFloats(1).size(), 10U);
  for (const std::string& name : ElementwiseOpsOfFloats(1)) {
    const int64_t ulps = GetOp(name).f32_ulps();
    int64_t largest = 0;
    for (int64_t size : kSizes) {
      largest = std::max(largest, CheckLoop({Unary(name, DType::kF32, size), Values::kEverything, ulps}));
    }
    std::printf("%-8s f32: %ld ulp at most\n", name.c_str(), static_cast<long>(largest));
    CheckLoop({Unary(name, DType::kF64, 1000), Values::kEverything});
    const int64_t rounding = ulps > 0 ? 1 : 0;
    CheckLoop({Unary(name, DType::kF16, 1003), Values::kEverything, rounding});
    CheckLoop({Unary(name, DType::kBF16, 1003), Values::kEverything, rounding});
  }
}

TEST(LoopCompiler, BinaryOpsOfAllDTypes) {
  ASSERT_GT(ElementwiseOpsOfFloats(2).size(), 5U);
  for (const std::string& op : ElementwiseOpsOfFloats(2)) {
    for (DType dtype : kAllDTypes) {
      const TensorType types[] = {{dtype, {1003}}, {dtype, {1003}}};
      if (dtype == DType::kBool || !GetOp(op).InferTypes(types, {}).ok()) continue;
      const int64_t ulps = IsFloat(dtype) ? GetOp(op).f32_ulps() : 0;
      const bool half = IsFloat(dtype) && SizeOf(dtype) == 2;
      // Negative powers of integer zero are errors; for div only zeros of the second operand matter.
      CheckLoop({Binary(op, dtype, 1003), IsFloat(dtype) ? Values::kEverything : Values::kDivisors,
                 half ? std::max<int64_t>(ulps, 1) : ulps});
    }
    for (int64_t size : kSizes) CheckLoop({Binary(op, DType::kF32, size), Values::kEverything, GetOp(op).f32_ulps()});
  }
}

TEST(LoopCompiler, IntegersOfOneOperand) {
  int ops = 0;
  for (const std::string& op : ElementwiseOpsOfFloats(1)) {
    for (DType dtype : {DType::kI8, DType::kI16, DType::kI32, DType::kI64}) {
      const TensorType type{dtype, {1003}};
      if (!GetOp(op).InferTypes({&type, 1}, {}).ok()) continue;
      CheckLoop({Unary(op, dtype, 1003)});
      ++ops;
    }
  }
  EXPECT_GE(ops, 12);
}

TEST(LoopCompiler, Bits) {
  int dtypes = 0;
  for (DType dtype : kAllDTypes) {
    if (IsFloat(dtype)) continue;
    CheckLoop({Unary("not", dtype, 1003)});
    for (const char* op : {"and", "or", "xor"}) CheckLoop({Binary(op, dtype, 1003)});
    ++dtypes;
    if (dtype == DType::kBool) continue;
    // The operands include negative shifts and shifts by at least the number of bits.
    for (const char* op : {"shift_left", "shift_right"}) CheckLoop({Binary(op, dtype, 1003)});
  }
  EXPECT_EQ(dtypes, 9);
}

// Seeds, steps and indices use all 64 bits; all words of one draw are computed.
TEST(LoopCompiler, RandomBits) {
  for (const std::string size : {"1", "37", "1003"}) {
    const std::string i64 = "i64[" + size + "]", u32 = "u32[" + size + "]";
    std::string nodes, results, values;
    for (const char* word : {"0", "1", "2", "3"}) {
      nodes += std::string("  %w") + word + " = random_bits %seed, %step, %at {stream=16777215, word=" + word +
               "} : " + u32 + "\n";
      results += std::string(*word == '0' ? "" : ", ") + "w" + word + ": " + u32;
      values += std::string(*word == '0' ? "" : ", ") + "%w" + word;
    }
    CheckLoop({"graph @f(%seed: " + i64 + ", %step: " + i64 + ", %at: " + i64 + ") -> (" + results + ") {\n" + nodes +
               "  return " + values + "\n}"});
  }
}

TEST(LoopCompiler, BitcastBetweenAllDTypesOfAWidth) {
  int pairs = 0;
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      if (SizeOf(from) != SizeOf(to) || (to == DType::kBool && from != to)) continue;
      const std::string x = Type(from, 1003), y = Type(to, 1003);
      CheckLoop({"graph @f(%x: " + x + ") -> (y: " + y + ") {\n %y = bitcast %x {dtype=" + std::string(DTypeName(to)) +
                     "} : " + y + "\n return %y\n}",
                 Values::kEverything});
      ++pairs;
    }
  }
  EXPECT_EQ(pairs, 9 + 9 + 16 + 7);
}

TEST(LoopCompiler, CompareAndSelectOfAllDTypes) {
  for (DType dtype : kAllDTypes) {
    for (const char* direction : {"eq", "ne", "lt", "le", "gt", "ge"}) {
      CheckLoop({Binary("compare", dtype, 1003, std::string("{direction=") + direction + "}", DType::kBool)});
    }
    const std::string type = Type(dtype, 1003);
    CheckLoop({"graph @f(%c: bool[1003], %x: " + type + ", %y: " + type + ") -> (z: " + type +
               ") {\n %z = select %c, %x, %y : " + type + "\n return %z\n}"});
  }
}

TEST(LoopCompiler, ConvertBetweenAllDTypes) {
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      const std::string x = Type(from, 1003), y = Type(to, 1003);
      CheckLoop({"graph @f(%x: " + x + ") -> (y: " + y + ") {\n %y = convert %x {dtype=" + std::string(DTypeName(to)) +
                 "} : " + y + "\n return %y\n}"});
    }
  }
}

TEST(LoopCompiler, DivisionByZeroIsReported) {
  const Graph body = ParseGraph(Binary("div", DType::kI32, 40)).value();
  auto compiler = LoopCompiler::Create().value();
  const CompiledLoop loop = compiler->Compile(body).value();
  std::vector<int32_t> x(40, 7), y(40, 2), z(40, -1);
  void* buffers[] = {x.data(), y.data(), z.data()};
  EXPECT_EQ(loop.RunAll(buffers, nullptr), kLoopOk);
  y[37] = 0;
  EXPECT_EQ(loop.RunAll(buffers, nullptr), LoopRefusal(0));
  EXPECT_EQ(z[36], 3);
  EXPECT_EQ(z[37], 0);
}

// Each moved operand is multiplied by one that is not moved, so that one loop has two kinds of access.
TEST(LoopCompiler, AnElementThatIsNotWithinItsBoundsIsReported) {
  const auto error_of = [](const std::string& dtype, auto element) {
    const Graph body =
        ParseGraph("graph @f(%x: " + dtype + "[40]) -> (y: " + dtype + "[40]) {\n %n = not %x : " + dtype +
                   "[40]\n %m = not %n : " + dtype +
                   "[40]\n %y = within %m {low=-2, high=10, what=\"a label\"} : " + dtype + "[40]\n return %y\n}")
            .value();
    std::vector<decltype(element)> x(40, 7), y(40, 1);
    x[37] = element;
    void* buffers[] = {x.data(), y.data()};
    return LoopCompiler::Create().value()->Compile(body)->RunAll(buffers, nullptr);
  };
  for (int64_t element : {int64_t{-2}, int64_t{9}}) EXPECT_EQ(error_of("i64", element), kLoopOk) << element;
  for (int64_t element : {int64_t{-3}, int64_t{10}, INT64_MIN, INT64_MAX})
    EXPECT_EQ(error_of("i64", element), LoopRefusal(2)) << element;
  EXPECT_EQ(error_of("u8", uint8_t{9}), kLoopOk);
  EXPECT_EQ(error_of("u8", uint8_t{10}), LoopRefusal(2));
  EXPECT_EQ(error_of("u64", uint64_t{9}), kLoopOk);
  for (uint64_t element : {uint64_t{10}, UINT64_MAX, uint64_t{1} << 63})
    EXPECT_EQ(error_of("u64", element), LoopRefusal(2)) << element;
}

TEST(LoopCompiler, MovedOperands) {
  const auto moved = [](const std::string& shape, const std::string& op, const std::string& result) {
    return "graph @f(%x: f32" + shape + ", %y: f32" + result + ") -> (z: f32" + result + ", x: f32" + result +
           ") {\n %m = " + op + " : f32" + result + "\n %z = mul %m, %y : f32" + result + "\n return %z, %m\n}";
  };
  for (const std::string& body : {
           moved("[]", "broadcast %x {shape=[37,41], dims=[]}", "[37,41]"),
           moved("[41]", "broadcast %x {shape=[37,41], dims=[1]}", "[37,41]"),
           moved("[37]", "broadcast %x {shape=[37,41], dims=[0]}", "[37,41]"),
           moved("[20]", "broadcast %x {shape=[3,20,24,24], dims=[1]}", "[3,20,24,24]"),
           moved("[3,24]", "broadcast %x {shape=[3,20,24,5], dims=[0,2]}", "[3,20,24,5]"),
           moved("[5000]", "broadcast %x {shape=[3,5000], dims=[1]}", "[3,5000]"),
           moved("[41,37]", "transpose %x {permutation=[1,0]}", "[37,41]"),
           moved("[7,11,13]", "transpose %x {permutation=[2,0,1]}", "[13,7,11]"),
           moved("[6,35]", "reshape %x {shape=[2,3,5,7]}", "[2,3,5,7]"),
           moved("[2,3,35]", "reshape %x {shape=[6,5,7]}", "[6,5,7]"),
           moved("[9,50]", "slice %x {start=[1,3], limit=[8,45], stride=[2,3]}", "[4,14]"),
           moved("[9,50]", "slice %x {start=[2,0], limit=[5,50], stride=[1,1]}", "[3,50]"),
           moved("[1,1]", "reshape %x {shape=[]}", "[]"),
       }) {
    CheckLoop({body});
  }
  // A transpose between reshapes whose dimensions do not divide each other, in one nest of two loops.
  CheckLoop({R"(graph @f(%x: f32[12,10], %y: f32[120]) -> (z: f32[120]) {
    %t = transpose %x {permutation=[1,0]} : f32[10,12]
    %r = reshape %t {shape=[120]} : f32[120]
    %z = add %r, %y : f32[120]
    return %z
  })"});
}

TEST(LoopCompiler, ConstantsAndIota) {
  CheckLoop({R"(graph @f() -> (a: f32[3,40], b: i64[3,40], c: f32[120], d: bf16[3,40]) {
    %a0 = constant {value=dense<f32[]: 2.5>} : f32[]
    %a = broadcast %a0 {shape=[3,40], dims=[]} : f32[3,40]
    %b = iota {shape=[3,40], dtype=i64, dim=1} : i64[3,40]
    %c = iota {shape=[120], dtype=f32, dim=0} : f32[120]
    %d = iota {shape=[3,40], dtype=bf16, dim=0} : bf16[3,40]
    return %a, %b, %c, %d
  })"});
  CheckLoop({R"(graph @f(%x: f32[5,3]) -> (y: f32[5,3]) {
    %c = constant {value=dense<f32[3]: 1.0, 2.5, -3.0>} : f32[3]
    %b = broadcast %c {shape=[5,3], dims=[1]} : f32[5,3]
    %y = add %x, %b : f32[5,3]
    return %y
  })"});
}

TEST(LoopCompiler, MomentumWritesBothInPlace) {
  CheckLoop({R"(graph @f(%w: f32[100003], %v: f32[100003], %g: f32[100003]) -> (w: f32[100003], v: f32[100003]) {
    %m = constant {value=dense<f32[]: 0.9>} : f32[]
    %mb = broadcast %m {shape=[100003], dims=[]} : f32[100003]
    %r = constant {value=dense<f32[]: 0.05>} : f32[]
    %rb = broadcast %r {shape=[100003], dims=[]} : f32[100003]
    %v0 = mul %mb, %v : f32[100003]
    %v1 = add %v0, %g : f32[100003]
    %s = mul %rb, %v1 : f32[100003]
    %w1 = sub %w, %s : f32[100003]
    return %w1, %v1
  })"});
  const Graph body = ParseGraph(R"(graph @f(%w: f32[9], %b: f32[], %h: f16[9]) -> (w: f32[9]) {
    %bb = broadcast %b {shape=[9], dims=[]} : f32[9]
    %hf = convert %h {dtype=f32} : f32[9]
    %s = sub %w, %bb : f32[9]
    %t = add %s, %hf : f32[9]
    return %t
  })")
                         .value();
  EXPECT_EQ(AnalyzeLoop(body)->in_place, std::vector<std::vector<int>>({{0}}));
}

std::string Reduce(const std::string& op, DType dtype, const std::string& shape, const std::string& dims,
                   const std::string& result) {
  const std::string name(DTypeName(dtype));
  return "graph @f(%x: " + name + shape + ") -> (y: " + name + result + ") {\n %y = " + op + " %x {dims=" + dims +
         "} : " + name + result + "\n return %y\n}";
}

struct ReduceShape {
  const char *shape, *dims, *result;
};
constexpr ReduceShape kReduceShapes[] = {
    {"[100003]", "[0]", "[]"},
    {"[128,417]", "[0]", "[417]"},
    {"[128,417]", "[1]", "[128]"},
    {"[9,20,24,24]", "[0,2,3]", "[20]"},
    {"[64,20,24,24]", "[0,2,3]", "[20]"},
    {"[5000,10]", "[0]", "[10]"},
    {"[20000,10]", "[0]", "[10]"},
    {"[100,10]", "[1]", "[100]"},
    {"[3,50,7]", "[1]", "[3,7]"},
    {"[3,50,7]", "[0,1,2]", "[]"},
    {"[4,5,6,7]", "[1,3]", "[4,6]"},
    {"[4,5,6,7]", "[0,2]", "[5,7]"},
    {"[5,1]", "[1]", "[5]"},
    {"[1,5]", "[0]", "[5]"},
    {"[1,1]", "[0,1]", "[]"},
    {"[3,0]", "[1]", "[3]"},
    {"[0,3]", "[0]", "[3]"},
    {"[0,3]", "[1]", "[0]"},
    {"[2,600]", "[0]", "[600]"},
    {"[40000,3]", "[0]", "[3]"},
    {"[3,40000]", "[1]", "[3]"},
    {"[2,300,200]", "[0,2]", "[300]"},
};

TEST(LoopCompiler, ReductionsOverAllPatterns) {
  for (const ReduceShape& s : kReduceShapes) {
    for (const char* op : {"reduce_max", "reduce_min"}) CheckLoop({Reduce(op, DType::kF32, s.shape, s.dims, s.result)});
    // The terms are positive, so that the bound limits the relative error.
    CheckLoop({Reduce("reduce_sum", DType::kF32, s.shape, s.dims, s.result), Values::kNearOne, 12});
    CheckLoop({Reduce("reduce_sum", DType::kI32, s.shape, s.dims, s.result)});
  }
}

TEST(LoopCompiler, ReductionsOfAllDTypes) {
  for (DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    for (const OpDef* def : AllOps()) {
      if (!def->reduction()) continue;
      const std::string& op = def->name();
      const bool is_product = def->reduction() == ReduceKind::kProd;
      const bool rounds = IsFloat(dtype) && (is_product || def->reduction() == ReduceKind::kSum);
      for (const ReduceShape& s :
           {ReduceShape{"[30,17]", "[0]", "[17]"}, {"[30,17]", "[1]", "[30]"}, {"[40000]", "[0]", "[]"}}) {
        if (rounds && is_product && s.shape[1] == '4') continue;  // underflows
        CheckLoop({Reduce(op, dtype, s.shape, s.dims, s.result),
                   IsFloat(dtype) && !rounds ? Values::kEverything : Values::kNearOne,
                   !rounds                ? 0
                   : dtype == DType::kF64 ? 200
                   : SizeOf(dtype) == 2   ? 1
                                          : 16});
      }
    }
  }
}

// Sums in f32 must not be worse than those of a plain loop.
TEST(LoopCompiler, SumsAreAccurate) {
  const Graph body = ParseGraph(Reduce("reduce_sum", DType::kF32, "[1000003]", "[0]", "[]")).value();
  const Tensor x = loop_test::RandomTensor(TensorType{DType::kF32, Shape({1000003})}, Values::kNearOne, 1);
  double exact = 0;
  float plain = 0;
  for (float value : x.data<float>()) exact += value, plain += value;
  const double found = loop_test::RunLoop(body, {x})[0].At(0);
  EXPECT_LE(std::fabs(found - exact), 1e-6 * exact);
  EXPECT_LE(std::fabs(found - exact), std::fabs(plain - exact));
}

// Integers whose sums f64 represents exactly in any order, but f32 does not; and factors whose products exceed the
// range of f32.
TEST(LoopCompiler, SumsAndProductsOfF32AreInF64) {
  for (const ReduceShape& s : kReduceShapes) {
    const Graph body = ParseGraph(Reduce("reduce_sum", DType::kF32, s.shape, s.dims, s.result)).value();
    Tensor x(body.inputs()[0].value.type());
    const auto elements = x.mutable_data<float>();
    for (size_t i = 0; i < elements.size(); ++i)
      elements[i] = static_cast<float>(i * 7919 % 5) * 0x1p26F - 0x1p27F + static_cast<float>(i % 3);
    const Tensor expected = InterpretOneRank(body, {x}).value()[0];
    EXPECT_EQ(loop_test::RunLoop(body, {x})[0], expected) << s.shape << " " << s.dims;
  }
  const Graph body = ParseGraph(Reduce("reduce_prod", DType::kF32, "[8,5]", "[0]", "[5]")).value();
  Tensor x(body.inputs()[0].value.type());
  const auto elements = x.mutable_data<float>();
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = i < 20 ? 0x1p60F : 0x1p-60F;
  EXPECT_EQ(loop_test::RunLoop(body, {x})[0], Tensor::Full({DType::kF32, Shape({5})}, 1));
}

TEST(LoopCompiler, ProducersAndConsumersOfReductions) {
  // The gradient of a bias before a relu: the masked gradient is a result too.
  CheckLoop({R"(graph @f(%y: f32[128,300], %g: f32[128,300]) -> (dz: f32[128,300], db: f32[300]) {
    %z = constant {value=dense<f32[]: 0.0>} : f32[]
    %zb = broadcast %z {shape=[128,300], dims=[]} : f32[128,300]
    %c = compare %y, %zb {direction=gt} : bool[128,300]
    %dz = select %c, %g, %zb : f32[128,300]
    %db = reduce_sum %dz {dims=[0]} : f32[300]
    return %dz, %db
  })",
             Values::kNearOne, 12});
  // Batch statistics: two reductions in one pass, and values computed from them.
  for (const char* dims : {"[0,2,3]"}) {
    CheckLoop({std::string(R"(graph @f(%x: f32[8,20,12,12], %r: f32[20]) -> (m: f32[20], r: f32[20]) {
    %n = constant {value=dense<f32[]: 0.000868055555>} : f32[]
    %nb = broadcast %n {shape=[20], dims=[]} : f32[20]
    %s = reduce_sum %x {dims=)") +
                   dims + R"(} : f32[20]
    %xx = mul %x, %x : f32[8,20,12,12]
    %q = reduce_sum %xx {dims=)" +
                   dims + R"(} : f32[20]
    %m = mul %s, %nb : f32[20]
    %q1 = mul %q, %nb : f32[20]
    %r1 = add %r, %q1 : f32[20]
    return %m, %r1
  })",
               Values::kNearOne, 12});
  }
}

std::string Softmax(int64_t rows, int64_t columns, int64_t dim) {
  const std::string full = "f32[" + std::to_string(rows) + "," + std::to_string(columns) + "]";
  const std::string kept = "f32[" + std::to_string(dim == 0 ? columns : rows) + "]";
  const std::string reduce = " {dims=[" + std::to_string(dim) + "]} : " + kept;
  const std::string back = " {shape=" + full.substr(3) + ", dims=[" + std::to_string(1 - dim) + "]} : " + full;
  return "graph @f(%x: " + full + ") -> (y: " + full + ") {\n %m = reduce_max %x" + reduce + "\n %mb = broadcast %m" +
         back + "\n %d = sub %x, %mb : " + full + "\n %e = exp %d : " + full + "\n %s = reduce_sum %e" + reduce +
         "\n %sb = broadcast %s" + back + "\n %y = div %e, %sb : " + full + "\n return %y\n}";
}

TEST(LoopCompiler, ReducedValuesBroadcastBack) {
  for (int64_t columns : {1, 10, 64, 1000}) {
    CheckLoop({Softmax(37, columns, 1), Values::kNearOne, 12});
    CheckLoop({Softmax(37, columns, 0), Values::kNearOne, 12});
  }
}

// fmod and integer powers iterate until all lanes are done: on scalars, before reductions and after them.
TEST(LoopCompiler, StepsWithinAnElement) {
  for (const auto& [dims, kept, back] : {std::tuple("[1]", "[37]", "[0]"), {"[0]", "[41]", "[1]"}}) {
    const std::string reduced = std::string("f32") + kept, to = std::string(" {shape=[37,41], dims=") + back + "}";
    CheckLoop({"graph @f(%x: f32[37,41], %s: f32[], %t: f32[]) -> (y: f32[37,41], q: " + reduced + ") {" + R"(
      %c = constant {value=dense<f32[]: 1e30>} : f32[]
      %l = mul %s, %c : f32[]
      %m = fmod %l, %t : f32[]
      %mb = broadcast %m {shape=[37,41], dims=[]} : f32[37,41]
      %a = fmod %x, %mb : f32[37,41]
      %r = reduce_min %a {dims=)" +
                   dims + "} : " + reduced + R"(
      %rb = broadcast %r)" +
                   to + R"( : f32[37,41]
      %y = fmod %x, %rb : f32[37,41]
      %lk = broadcast %l {shape=)" +
                   kept + ", dims=[]} : " + reduced + R"(
      %q = fmod %lk, %r : )" +
                   reduced + R"(
      return %y, %q
    })",
               Values::kNearOne});
  }
  CheckLoop({R"(graph @f(%x: i32[1003], %s: i32[], %t: i32[]) -> (y: i32[1003]) {
    %p = pow %s, %t : i32[]
    %pb = broadcast %p {shape=[1003], dims=[]} : i32[1003]
    %y = pow %x, %pb : i32[1003]
    return %y
  })",
             Values::kNearOne});
}

// On a GPU, several threads share a row. The thread that writes the row's result over the label must wait for the
// threads that still read the label.
TEST(LoopCompiler, AReducedResultInThePlaceOfWhatRowsAreComparedWith) {
  for (const char* columns : {"10", "1000", "9000"}) {
    const std::string c = columns;
    CheckLoop({"graph @f(%x: f32[12," + c + "], %l: i32[12]) -> (y: f32[12," + c +
                   "], s: f32[12]) {\n %s = reduce_max %x {dims=[1]} : f32[12]\n" +
                   " %m = broadcast %s {dims=[0], shape=[12," + c + "]} : f32[12," + c + "]\n" +
                   " %d = sub %m, %x : f32[12," + c + "]\n %i = iota {shape=[12," + c +
                   "], dtype=i32, dim=1} : i32[12," + c + "]\n" + " %b = broadcast %l {dims=[0], shape=[12," + c +
                   "]} : i32[12," + c + "]\n" + " %e = compare %i, %b {direction=eq} : bool[12," + c + "]\n" +
                   " %y = select %e, %x, %d : f32[12," + c + "]\n return %y, %s\n}",
               Values::kNearOne});
  }
}

TEST(LoopCompiler, RefusesWhatIsNoLoop) {
  const auto error = [](const char* text) {
    return std::string(AnalyzeLoop(ParseGraph(text).value()).status().message());
  };
  EXPECT_NE(error(R"(graph @f(%x: f32[4,4]) -> (y: f32[4,4]) {
    %y = matmul %x, %x : f32[4,4]
    return %y
  })")
                .find("a loop cannot contain matmul"),
            std::string::npos);
  EXPECT_NE(error(R"(graph @f(%x: f32[4,4], %y: f32[3]) -> (a: f32[4,4], b: f32[3]) {
    %a = neg %x : f32[4,4]
    %b = neg %y : f32[3]
    return %a, %b
  })")
                .find("does not have the 16 elements"),
            std::string::npos);
  EXPECT_NE(error(R"(graph @f(%x: f32[4,5]) -> (a: f32[4], b: f32[5]) {
    %a = reduce_sum %x {dims=[1]} : f32[4]
    %b = reduce_sum %x {dims=[0]} : f32[5]
    return %a, %b
  })")
                .find("reduce different shapes or dims"),
            std::string::npos);
}

// A new elementwise op is not fused until emit_element.cc has code for it; the backend calls AnalyzeLoop to find out.
TEST(LoopCompiler, RefusesAnElementwiseOpWithoutCode) {
  const OpDef cube =
      OpDef("cube").Operand("x").Trait(kElementwise).Infer([](InferContext& c) { return c.SetResult(c.operand(0)); });
  Graph body("f");
  const Value x = body.AddInput("x", TensorType{DType::kF32, {4}}).value();
  ASSERT_TRUE(body.AddResult("y", body.Insert({&cube, {x}, {}, "", {}}).value()->result()).ok());
  EXPECT_NE(AnalyzeLoop(body).status().message().find("no code for cube"), std::string::npos);
}

// A new op that moves elements is fused as soon as its block states their positions; here it reverses a dimension,
// behind other movers.
TEST(LoopCompiler, AMoverThatItHasNeverSeen) {
  const OpDef reversed = OpDef("reversed")
                             .Operand("x")
                             .MovesFrom([](const IndexContext& c) {
                               const auto last = static_cast<size_t>(c.operand().rank() - 1);
                               IndexMap map;
                               for (size_t d = 0; d <= last; ++d) map.push_back(Affine::Index(last + 1, d));
                               map[last] = Affine::Index(last + 1, last, -1, c.operand().dims()[last] - 1);
                               return map;
                             })
                             .Infer([](InferContext& c) { return c.SetResult(c.operand(0)); });
  Graph body("f");
  const Value x = body.AddInput("x", TensorType{DType::kF32, {5, 34}}).value();
  const Value y = body.AddInput("y", TensorType{DType::kF32, {170}}).value();
  const auto insert = [&](const OpDef& op, std::vector<Value> operands, AttributeMap attributes = {}) {
    return body.Insert({&op, std::move(operands), std::move(attributes), "", {}}).value()->result();
  };
  const Value flat = insert(GetOp("reshape"), {insert(reversed, {x})}, {{"shape", std::vector<int64_t>{170}}});
  const Value backwards = insert(reversed, {insert(GetOp("sub"), {flat, y})});
  ASSERT_TRUE(body.AddResult("z", backwards).ok());
  const Tensor a = loop_test::RandomTensor(x.type(), Values::kNearOne, 1),
               b = loop_test::RandomTensor(y.type(), Values::kNearOne, 2);
  const Tensor z = loop_test::RunLoop(body, {a, b}).at(0);
  for (int64_t i = 0; i < 170; ++i) {
    const int64_t from = 169 - i, row = from / 34, column = 33 - from % 34;
    const auto expected = static_cast<float>(a.At(row * 34 + column)) - static_cast<float>(b.At(from));
    ASSERT_EQ(static_cast<float>(z.At(i)), expected) << i;
  }
}

TEST(LoopCompiler, EqualBodiesShareCode) {
  auto compiler = LoopCompiler::Create().value();
  const Graph a = ParseGraph("graph @a(%x: f32[9]) -> (y: f32[9]) {\n %y = exp %x : f32[9]\n return %y\n}").value();
  const Graph b = ParseGraph("graph @b(%u: f32[9]) -> (v: f32[9]) {\n %v = exp %u : f32[9]\n return %v\n}").value();
  const Graph c = ParseGraph("graph @c(%u: f32[8]) -> (v: f32[8]) {\n %v = exp %u : f32[8]\n return %v\n}").value();
  const Graph* const bodies[] = {&a, &b, &c};
  const std::vector<CompiledLoop> loops = compiler->Compile(bodies).value();
  EXPECT_EQ(loops[0].run, loops[1].run);
  EXPECT_NE(loops[0].run, loops[2].run);
  EXPECT_EQ(compiler->Compile(a)->run, loops[0].run);
}

// Code for processors without wide vectors or fused multiplication, which this processor can run too.
TEST(LoopCompiler, OlderProcessors) {
  for (const auto& [cpu, features] : {std::pair("x86-64", ""), {"x86-64-v2", ""}, {"haswell", ""}}) {
    SCOPED_TRACE(cpu);
    auto compiler = LoopCompiler::Create({.cpu = cpu, .features = features, .sizes = {}}).value();
    for (const std::string& text :
         {Unary("tanh", DType::kF32, 1003), Unary("floor", DType::kF32, 1003), Unary("neg", DType::kF16, 1003),
          Unary("sin", DType::kF32, 1003), Unary("round", DType::kF32, 1003),
          Reduce("reduce_sum", DType::kF32, "[64,100]", "[0]", "[100]")}) {
      const Graph body = ParseGraph(text).value();
      const CompiledLoop loop = compiler->Compile(body).value();
      Tensor x = loop_test::RandomTensor(body.inputs()[0].value.type(), Values::kEverything, 1),
             y(body.results()[0].value.type());
      void* buffers[] = {x.mutable_bytes(), y.mutable_bytes()};
      ASSERT_EQ(loop.RunAll(buffers, nullptr), kLoopOk);
      const Tensor expected = InterpretOneRank(body, {x}).value()[0];
      const bool sum = text.find("reduce") != std::string::npos;
      for (int64_t i = 0; i < y.num_elements() && !sum; ++i)
        EXPECT_LE(loop_test::UlpDistance(y, expected, i), 4) << x.At(i);
      // The order of a sum does not depend on the processor.
      if (sum) {
        EXPECT_EQ(y, loop_test::RunLoop(body, {x})[0]);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
