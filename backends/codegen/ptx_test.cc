// Generates PTX for the op cases that become loops. The PTX must be complete, and NVIDIA's assembler must accept it if
// it is installed.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "backends/codegen/grid_compiler.h"
#include "backends/codegen/ptx_architecture.h"
#include "backends/codegen/widen_ptx.h"
#include "bazel/num_cases.h"
#include "core/printer.h"
#include "gtest/gtest.h"
#include "test/op_cases/op_case_graph.h"

namespace lockstep {
namespace {

constexpr char kArchitecture[] = "sm_90";

absl::StatusOr<std::string> PtxOf(const Graph& body, const char* architecture = kArchitecture,
                                  const GridSizes& sizes = {}) {
  const GridCompiler compiler([architecture] { return CreatePtxTarget(architecture); }, sizes);
  const Graph* const bodies[] = {&body};
  ASSIGN_OR_RETURN(const std::vector<CompiledGrid> compiled, compiler.Compile(bodies));
  return *compiled[0].image;
}

bool HasPtxas() { return std::system("ptxas --version > /dev/null 2>&1") == 0; }

// Returns the messages of ptxas; empty if there are none.
std::string Assemble(const std::string& ptx, const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "ptx";
  std::filesystem::create_directories(folder);
  const std::string file = folder / (name + ".ptx"), messages = folder / (name + ".txt");
  std::ofstream(file) << ptx;
  const std::string command = std::string("ptxas -arch=") + kArchitecture +
                              " --warning-as-error --output-file /dev/null " + file + " > " + messages + " 2>&1";
  const int exit_code = std::system(command.c_str());
  std::ifstream said(messages);
  std::string text(std::istreambuf_iterator<char>(said), {});
  return exit_code == 0 ? text : text + "exit code " + std::to_string(exit_code);
}

// Returns a 16-bit instruction that ptxas gets wrong (widen_ptx.h); empty if there is none.
std::string NarrowArithmetic(const std::string& ptx) {
  for (const char* op : {"abs", "max", "min", "neg", "sub"}) {
    for (const char* type : {".s16", ".u16"}) {  // and .s16x2, .u16x2
      if (ptx.find(std::string("\n\t") + op + type) != std::string::npos) return std::string(op) + type;
    }
  }
  return "";
}

// Returns the graphs of the op cases that can become a loop.
std::vector<std::pair<std::string, Graph>> Loops() {
  std::vector<std::pair<std::string, Graph>> loops;
  for (const OpCase& row : AcceptedOpCases()) {
    absl::StatusOr<Graph> graph = CaseGraph(row);
    if (graph.ok() && graph->mesh().empty() && AnalyzeGrid(*graph).ok())
      loops.emplace_back(row.ToString(), *std::move(graph));
  }
  return loops;
}

TEST(Ptx, OfEveryLoopAmongTheOpCases) {
  const auto loops = Loops();
  ASSERT_GT(loops.size(), 300U);
  const bool assemble = HasPtxas();
  if (!assemble) std::printf("ptxas is not installed: the PTX is not assembled\n");
  std::vector<std::string> problems(loops.size());
  const auto check = [&](size_t first) {
    for (size_t i = first; i < loops.size(); i += 2) {
      const auto& [row, body] = loops[i];
      const absl::StatusOr<std::string> ptx = PtxOf(body);
      if (!ptx.ok()) problems[i] = ptx.status().ToString();
      else if (ptx->find(".visible .entry lockstep_loop(") == std::string::npos) problems[i] = "no kernel";
      else if (ptx->find(".extern .func") != std::string::npos) problems[i] = "calls a function that is not there";
      else if (!NarrowArithmetic(*ptx).empty()) problems[i] = "has a " + NarrowArithmetic(*ptx);
      else if (assemble && (i % 3 == 0 || TestsEverything())) problems[i] = Assemble(*ptx, std::to_string(i));
    }
  };
  std::thread other(check, 1);
  check(0);
  other.join();
  for (size_t i = 0; i < loops.size(); ++i) EXPECT_EQ(problems[i], "") << loops[i].first;
}

Graph Parse(const char* text) { return ParseGraph(text).value(); }

constexpr char kScaledSum[] = R"(graph @f(%x: f32[4194304], %y: f32[4194304], %b: f32[4194304]) -> (z: f32[4194304]) {
  %p = mul %x, %y : f32[4194304]
  %s = add %p, %b : f32[4194304]
  %z = div %s, %y : f32[4194304]
  return %z
})";

TEST(Ptx, RoundsEveryOpByItself) {
  const std::string ptx = PtxOf(Parse(kScaledSum)).value();
  EXPECT_NE(ptx.find("mul.rn.f32"), std::string::npos);
  EXPECT_NE(ptx.find("add.rn.f32"), std::string::npos);
  EXPECT_NE(ptx.find("div.rn.f32"), std::string::npos);
  EXPECT_EQ(ptx.find("fma"), std::string::npos);
  EXPECT_EQ(ptx.find(".ftz"), std::string::npos);
}

size_t Occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// `divisor` is a line that makes %b out of %y.
std::string QuotientBy(const std::string& divisor) {
  const std::string text = "graph @f(%x: f32[4096,1024], %y: f32[4096]) -> (z: f32[4096,1024]) {\n" + divisor +
                           "\n%z = div %x, %b : f32[4096,1024]\nreturn %z\n}";
  return PtxOf(Parse(text.c_str())).value();
}

TEST(Ptx, ANumberARowDividesByItsReciprocal) {
  const std::string by_row = QuotientBy("%b = broadcast %y {dims=[0], shape=[4096,1024]} : f32[4096,1024]");
  EXPECT_EQ(Occurrences(by_row, "div.rn.f32"), 0U) << by_row;
  EXPECT_EQ(Occurrences(by_row, "rcp.rn.f32"), 1U);
  EXPECT_EQ(Occurrences(by_row, "fma.rn.f32"), 8U);  // two for each of four lanes
  const std::string by_eight = QuotientBy(
      "%c = constant {value=dense<f32[]: 8>} : f32[]\n%b = broadcast %c {dims=[], shape=[4096,1024]} : "
      "f32[4096,1024]");
  EXPECT_EQ(Occurrences(by_eight, "mul.rn.f32"), 4U) << by_eight;
  EXPECT_EQ(Occurrences(by_eight, "fma.rn.f32"), 0U);
}

// The elements of these rows are no whole vectors, and each thread has many of a row.
TEST(Ptx, ANumberARowDividesByItsReciprocalInALoop) {
  const std::string ptx = PtxOf(Parse(R"(graph @f(%x: f32[64,50257]) -> (z: f32[64,50257]) {
    %s = reduce_sum %x {dims=[1]} : f32[64]
    %b = broadcast %s {dims=[0], shape=[64,50257]} : f32[64,50257]
    %z = div %x, %b : f32[64,50257]
    return %z
  })"))
                              .value();
  EXPECT_EQ(Occurrences(ptx, "div.rn.f32"), 0U) << ptx;
  EXPECT_EQ(Occurrences(ptx, "rcp.rn.f32"), 1U);
}

TEST(Ptx, MaximaAreInstructionsThatKeepNan) {
  const std::string ptx = PtxOf(Parse(R"(graph @f(%x: f32[4194304], %y: f32[4194304]) -> (z: f32[4194304]) {
    %m = max %x, %y : f32[4194304]
    %z = min %m, %x : f32[4194304]
    return %z
  })"))
                              .value();
  EXPECT_EQ(Occurrences(ptx, "max.NaN.f32"), 4U) << ptx;
  EXPECT_EQ(Occurrences(ptx, "min.NaN.f32"), 4U);
  EXPECT_EQ(Occurrences(ptx, "selp"), 0U);
}

TEST(Ptx, OfNarrowIntegersIsWideWhereTheAssemblerIsWrong) {
  for (const std::string op : {"abs", "max", "min", "neg", "sub"}) {
    const std::string operands = op == "abs" || op == "neg" ? " %x" : " %x, %y";
    for (const std::string dtype : {"i8", "i16"}) {
      const std::string type = dtype + "[100003]";
      const std::string text = "graph @f(%x: " + type + ", %y: " + type + ") -> (z: " + type + ") { %z = " + op +
                               operands + " : " + type + " return %z }";
      const std::string ptx = PtxOf(Parse(text.c_str())).value();
      EXPECT_NE(ptx.find("\t" + op + ".s32"), std::string::npos) << ptx;
      EXPECT_EQ(NarrowArithmetic(ptx), "") << ptx;
    }
  }
}

TEST(WidenPtx, ReplacesAnInstructionAndNothingElse) {
  EXPECT_EQ(WidenPtx("\tadd.s16 \t%rs1, %rs2, 1;\n\tmax.s32 \t%r1, %r2, 0;\n\tmax.s16x2 \t%r1, %r2, %r3;\n}"),
            "\tadd.s16 \t%rs1, %rs2, 1;\n\tmax.s32 \t%r1, %r2, 0;\n\tmax.s16x2 \t%r1, %r2, %r3;\n}");
  EXPECT_EQ(WidenPtx("\tneg.s16 \t%rs1, %rs2;\n"),
            "\t{\n\t.reg .b16 \t%narrow<2>;\n\t.reg .b32 \t%wide<2>;\n"
            "\tmov.b16 \t%narrow0, %rs2;\n\tcvt.s32.s16 \t%wide0, %narrow0;\n"
            "\tneg.s32 \t%wide0, %wide0;\n\tcvt.u16.u32 \t%rs1, %wide0;\n\t}\n");
  EXPECT_EQ(WidenPtx("min.u16 \t%rs1, %rs2, -1;"),
            "\t{\n\t.reg .b16 \t%narrow<2>;\n\t.reg .b32 \t%wide<2>;\n"
            "\tmov.b16 \t%narrow0, %rs2;\n\tcvt.u32.u16 \t%wide0, %narrow0;\n"
            "\tmov.b16 \t%narrow1, -1;\n\tcvt.u32.u16 \t%wide1, %narrow1;\n"
            "\tmin.u32 \t%wide0, %wide0, %wide1;\n\tcvt.u16.u32 \t%rs1, %wide0;\n\t}");
}

TEST(Ptx, ReadsAndWritesVectors) {
  const std::string ptx = PtxOf(Parse(kScaledSum)).value();
  EXPECT_NE(ptx.find("ld.global.v4.f32"), std::string::npos);
  EXPECT_NE(ptx.find("st.global.v4.f32"), std::string::npos);
  EXPECT_EQ(ptx.find("ld.global.f32"), std::string::npos);
  EXPECT_EQ(ptx.find(".local"), std::string::npos);
}

// A GPU whose f64 is slow sums without it, and keeps both parts of a sum in registers.
TEST(Ptx, SumsInPairsNeedNoF64) {
  for (const char* dims : {"0", "1"}) {
    const std::string text = "graph @f(%x: f32[1024,1024]) -> (y: f32[1024,1024]) {\n %s = reduce_sum %x {dims=[" +
                             std::string(dims) + "]} : f32[1024]\n %b = broadcast %s {dims=[" +
                             (dims[0] == '0' ? "1" : "0") +
                             "], shape=[1024,1024]} : f32[1024,1024]\n %y = sub %x, %b : f32[1024,1024]\n return %y\n}";
    const Graph body = Parse(text.c_str());
    const std::string ptx = PtxOf(body, kArchitecture, {.sums_in_pairs = true}).value();
    EXPECT_EQ(ptx.find(".f64"), std::string::npos) << ptx;
    EXPECT_EQ(ptx.find(".local"), std::string::npos);
    EXPECT_NE(PtxOf(body).value().find("add.rn.f64"), std::string::npos);
  }
}

// A GPU refuses a kernel with more, so it is refused when it is compiled.
TEST(Ptx, ABlockWithMoreMemoryThanAGpuHasIsRefused) {
  const Graph body = Parse(R"(graph @wide(%x: u8[100000,4096]) -> (y: u8[4096]) {
    %y = reduce_max %x {dims=[0]} : u8[4096]
    return %y
  })");
  EXPECT_TRUE(AnalyzeGrid(body).ok());
  const absl::Status status = AnalyzeGrid(body, {.threads = 1024}).status();
  EXPECT_EQ(status.message(),
            "the kernel of @wide has blocks of 1024 threads that share 65536 bytes of memory, and a GPU allows 49152");
}

TEST(Ptx, ThreadsOfAWarpMeetInRegistersAndWarpsInTheBlocksMemory) {
  const std::string warp = PtxOf(Parse(R"(graph @f(%x: f32[16384,1024]) -> (y: f32[16384]) {
    %y = reduce_max %x {dims=[1]} : f32[16384]
    return %y
  })"))
                               .value();
  EXPECT_NE(warp.find("shfl.sync.bfly.b32"), std::string::npos);
  EXPECT_EQ(warp.find("bar.sync"), std::string::npos);
  const std::string block = PtxOf(Parse(R"(graph @f(%x: f32[600,65536]) -> (y: f32[600]) {
    %y = reduce_max %x {dims=[1]} : f32[600]
    return %y
  })"))
                                .value();
  EXPECT_NE(block.find("shfl.sync.bfly.b32"), std::string::npos);
  EXPECT_NE(block.find("bar.sync"), std::string::npos);
  EXPECT_NE(block.find("ld.shared"), std::string::npos);
}

// The alignment of a value follows from its size, as for a slice of a loop: the second slice of 2097156 bytes is
// aligned to 4.
TEST(Ptx, ValuesThatAreNoWholeVectorsAreReadByTheElement) {
  const std::string read = PtxOf(Parse(R"(graph @f(%x: f32[524289]) -> (y: f32[524288]) {
    %s = slice %x {start=[0], limit=[524288], stride=[1]} : f32[524288]
    %y = exp %s : f32[524288]
    return %y
  })"))
                               .value();
  EXPECT_EQ(read.find("ld.global.v"), std::string::npos) << read;
  EXPECT_EQ(read.find("ld.global.nc.v"), std::string::npos);
  EXPECT_NE(read.find("st.global.v4.f32"), std::string::npos) << "the result is of whole vectors";
  const std::string half = PtxOf(Parse(R"(graph @f(%x: f32[524290]) -> (y: f32[524288]) {
    %s = slice %x {start=[0], limit=[524288], stride=[1]} : f32[524288]
    %y = exp %s : f32[524288]
    return %y
  })"))
                               .value();
  EXPECT_EQ(half.find("ld.global.v"), std::string::npos) << half;
}

// PTX of an older architecture runs on later ones. For architectures that LLVM does not know, its newest one is used.
TEST(Ptx, ForGpusThatLlvmDoesNotKnowItIsOfItsNewest) {
  for (const char* architecture : {"sm_100", "sm_103", "sm_120", "sm_121"}) {
    EXPECT_NE(PtxOf(Parse(kScaledSum), architecture).value().find(".target sm_90\n"), std::string::npos)
        << architecture;
  }
  EXPECT_NE(PtxOf(Parse(kScaledSum), "sm_88").value().find(".target sm_87\n"), std::string::npos);
  EXPECT_EQ(PtxArchitectureFor("sm_120").value(), "sm_90");
  EXPECT_EQ(PtxArchitectureFor("sm_89").value(), "sm_89");
  for (const char* wrong : {"sm_1", "sm_", "sm_9x", "90", "sm_99999999999"}) {
    EXPECT_EQ(PtxArchitectureFor(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(Ptx, IsForTheArchitectureThatWasAskedFor) {
  EXPECT_NE(PtxOf(Parse(kScaledSum), "sm_80").value().find(".target sm_80"), std::string::npos);
  EXPECT_NE(PtxOf(Parse(kScaledSum), "sm_90").value().find(".target sm_90"), std::string::npos);
  const absl::Status unknown = PtxOf(Parse(kScaledSum), "sm_0815").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.message().find("sm_0815"), std::string::npos) << unknown;
}

}  // namespace
}  // namespace lockstep
