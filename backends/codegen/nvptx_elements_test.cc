// Checks the PTX text of the code for elements on GPUs: LLVM selects instructions for every elementwise op, none of
// them is a call, and each operation is rounded separately as IEEE 754 requires. If an assembler is installed (`ptxas`
// of the CUDA Toolkit), the PTX is also assembled.

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <string>

#include "backends/codegen/emit_element.h"
#include "backends/codegen/grid_target.h"
#include "backends/codegen/module_compiler.h"
#include "core/builder.h"
#include "gtest/gtest.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

constexpr const char* kProcessors[] = {"sm_80", "sm_90"};
constexpr unsigned kLanes[] = {1, 4};

// Returns the cases whose nodes have code for a target without libm, one for each combination of op, dtypes and
// attributes.
std::vector<Graph> Bodies() {
  std::vector<Graph> bodies;
  std::set<std::string> met;
  for (const OpCase& row : AcceptedOpCases()) {
    if (!GetOp(row.op).has_trait(kElementwise) || row.ranks > 0) continue;
    Graph body = CaseGraph(row).value();
    const Node& node = body.nodes().front();
    if (ElementEmitter::CallsLibm(node)) continue;
    std::string kind = row.op + AttributesToString(node.attributes()) + std::string(DTypeName(node.type().dtype));
    for (Value operand : node.operands()) kind += " " + std::string(DTypeName(operand.dtype()));
    if (met.insert(kind).second) bodies.push_back(std::move(body));
  }
  return bodies;
}

struct Compilation {
  Compilation(const std::string& cpu, llvm::FPOpFusion::FPOpFusionMode fusion) : module("m", context) {
    RegisterTargets();
    const std::string triple = "nvptx64-nvidia-cuda";
    std::string problem;
    const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, problem);
    LOCKSTEP_CHECK(target != nullptr) << problem;
    llvm::TargetOptions options;
    options.AllowFPOpFusion = fusion;
    machine.reset(target->createTargetMachine(triple, cpu, "", options, std::nullopt));
    module.setTargetTriple(triple);
    module.setDataLayout(machine->createDataLayout());
  }

  // Adds a kernel of one thread that loads `lanes` elements of each input, computes the nodes and stores the result.
  void AddKernel(const std::string& name, const Graph& body, unsigned lanes) {
    llvm::IRBuilder<> b(context);
    const std::vector<llvm::Type*> pointers(body.inputs().size() + 2, b.getPtrTy());
    auto* function = llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), pointers, /*isVarArg=*/false),
                                            llvm::Function::ExternalLinkage, name, module);
    function->setCallingConv(llvm::CallingConv::PTX_Kernel);
    b.SetInsertPoint(llvm::BasicBlock::Create(context, "entry", function));
    ElementEmitter emit(b, PtxInstructions(), /*error=*/function->getArg(1));
    std::unordered_map<Value, llvm::Value*, ValueHash> values;
    for (size_t i = 0; i < body.inputs().size(); ++i) {
      const Value input = body.inputs()[i].value;
      llvm::Type* type = emit.StoredType(input.dtype());
      if (lanes > 1) type = llvm::FixedVectorType::get(type, lanes);
      llvm::Value* address = function->getArg(static_cast<unsigned>(i + 2));
      values[input] = emit.FromStored(input.dtype(), b.CreateLoad(type, address));
    }
    for (const Node& node : body.nodes()) {
      std::vector<llvm::Value*> arguments;
      for (Value operand : node.operands()) arguments.push_back(values.at(operand));
      values[Value{const_cast<Node*>(&node), 0}] = emit.EmitOp(node, arguments, /*error_code=*/1);
    }
    const Value result = body.results()[0].value;
    b.CreateStore(emit.ToStored(result.dtype(), values.at(result)), function->getArg(0));
    b.CreateRetVoid();
  }

  std::string Ptx() {
    std::string problem;
    llvm::raw_string_ostream stream(problem);
    EXPECT_FALSE(llvm::verifyModule(module, &stream)) << problem;
    llvm::SmallString<0> text;
    llvm::raw_svector_ostream out(text);
    llvm::legacy::PassManager passes;
    EXPECT_FALSE(machine->addPassesToEmitFile(passes, out, nullptr, llvm::CodeGenFileType::AssemblyFile));
    passes.run(module);
    return std::string(text);
  }

  llvm::LLVMContext context;
  llvm::Module module;
  std::unique_ptr<llvm::TargetMachine> machine;
};

int64_t Count(const std::string& text, const std::string& expression) {
  const std::regex regex(expression);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator());
}

// Returns the PTX of every body, as a kernel of scalars and as one of vectors.
std::string ElementsFor(const std::string& cpu, const std::vector<Graph>& bodies) {
  Compilation compilation(cpu, llvm::FPOpFusion::Strict);
  for (size_t i = 0; i < bodies.size(); ++i) {
    for (unsigned lanes : kLanes) {
      const std::string name = "k" + std::to_string(i) + "_" + bodies[i].nodes().front().op_name();
      compilation.AddKernel(name + "_" + std::to_string(lanes), bodies[i], lanes);
    }
  }
  return compilation.Ptx();
}

TEST(NvptxElements, EveryOpIsInstructionsThatRoundAsIeeeSays) {
  const std::vector<Graph> bodies = Bodies();
  ASSERT_GT(bodies.size(), 150U);
  for (const char* cpu : kProcessors) {
    SCOPED_TRACE(cpu);
    const std::string ptx = ElementsFor(cpu, bodies);
    EXPECT_EQ(Count(ptx, "\\.visible \\.entry"), static_cast<int64_t>(bodies.size() * std::size(kLanes)));
    EXPECT_EQ(Count(ptx, "\\.extern|\\bcall\\b"), 0);
    // Instructions that round: to nearest, with denormals.
    const int64_t rounding = Count(ptx, "\\t(add|sub|mul|fma|div|rcp|sqrt)(\\.\\w+)*\\.f(32|64)\\b");
    EXPECT_GT(rounding, 1000);
    EXPECT_EQ(Count(ptx, "\\t(add|sub|mul|fma|div|rcp|sqrt)\\.rn\\.f(32|64)\\b"), rounding);
    // One approximation, of exponentials: its error is known, and the rest of e^x rounds as above.
    const int64_t exponentials = Count(ptx, "\\tex2\\.approx\\.ftz\\.f32\\b");
    EXPECT_GT(exponentials, 10);
    EXPECT_EQ(Count(ptx, "\\.(approx|full)\\b"), exponentials);
    EXPECT_EQ(Count(ptx, "\\.ftz\\b"), exponentials);
    EXPECT_GT(Count(ptx, "\\tcvt\\.rn\\.bf16x2\\.f32\\b"), 100);  // of two lanes each
  }
}

// The kernel's registers must suffice: a spill would be a note about local memory.
TEST(NvptxElements, EveryOpIsAssembled) {
  const auto assembler = llvm::sys::findProgramByName("ptxas");
  if (!assembler) GTEST_SKIP() << "no ptxas in PATH: nothing is assembled";
  const std::vector<Graph> bodies = Bodies();
  for (const std::string cpu : kProcessors) {
    const std::string path = ::testing::TempDir() + "/elements_" + cpu, log = path + ".log";
    std::ofstream(path + ".ptx") << ElementsFor(cpu, bodies);
    const std::optional<llvm::StringRef> streams[] = {std::nullopt, llvm::StringRef(log), llvm::StringRef(log)};
    const std::string arch = "-arch=" + cpu, result = path + ".cubin", text = path + ".ptx";
    std::string problem;
    const int status = llvm::sys::ExecuteAndWait(*assembler, {*assembler, arch, "-v", "-o", result, text}, std::nullopt,
                                                 streams, 0, 0, &problem);
    std::ifstream file(log);
    const std::string output(std::istreambuf_iterator<char>(file), {});
    ASSERT_EQ(status, 0) << problem << output;
    const auto kernels = static_cast<int64_t>(bodies.size() * std::size(kLanes));
    EXPECT_EQ(Count(output, "Compiling entry function"), kernels);
    EXPECT_EQ(Count(output, "\\b0 bytes spill stores, 0 bytes spill loads"), kernels);
  }
}

TEST(NvptxElements, AMultiplicationAndAnAdditionAreNotContracted) {
  Graph body("f");
  Builder b(body);
  const TensorType type{DType::kF32, {}};
  const Value x = body.AddInput("x", type).value(), y = body.AddInput("y", type).value();
  ASSERT_TRUE(body.AddResult("z", b.Add(b.Mul(x, y), y)).ok());
  for (const char* cpu : kProcessors) {
    for (const auto fusion : {llvm::FPOpFusion::Strict, llvm::FPOpFusion::Fast}) {
      const bool strict = fusion == llvm::FPOpFusion::Strict;
      Compilation compilation(cpu, fusion);
      compilation.AddKernel("f", body, 1);
      const std::string ptx = compilation.Ptx();
      EXPECT_EQ(Count(ptx, "\\tmul\\.rn\\.f32"), strict ? 1 : 0) << ptx;
      EXPECT_EQ(Count(ptx, "\\tadd\\.rn\\.f32"), strict ? 1 : 0) << ptx;
      EXPECT_EQ(Count(ptx, "\\tfma\\.rn\\.f32"), strict ? 0 : 1) << ptx;
    }
  }
}

}  // namespace
}  // namespace lockstep
