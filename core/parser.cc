// ParseGraph of core/printer.h: recursive descent, one function per part of the text form.

#include <charconv>
#include <optional>
#include <unordered_map>

#include "core/lexer.h"
#include "core/op_def.h"
#include "core/printer.h"
#include "core/text.h"

namespace lockstep {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text) {}

  absl::StatusOr<Graph> ParseAll() {
    ASSIGN_OR_RETURN(Graph graph, ParseGraphDefinition());
    if (lexer_.peek().kind != Token::Kind::kEnd)
      return lexer_.Error() << "expected the end, found '" << lexer_.peek().text << "'";
    return graph;
  }

 private:
  using Scope = std::unordered_map<std::string, Value>;
  struct ResultDecl {
    std::string name;
    bool is_state;
    TensorType type;
    PlacementMap placements;
  };

  bool Accept(std::string_view text) {
    if (!lexer_.peek().Is(text)) return false;
    lexer_.Next();
    return true;
  }
  absl::Status Expect(std::string_view text) {
    if (Accept(text)) return absl::OkStatus();
    const Token& found = lexer_.peek();
    return lexer_.Error() << "expected '" << text << "', found "
                          << (found.kind == Token::Kind::kEnd ? "the end" : "'" + found.text + "'");
  }
  absl::StatusOr<int64_t> ParseInt() {
    int64_t value = 0;
    const std::string& text = lexer_.peek().text;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (lexer_.peek().kind != Token::Kind::kNumber || error != std::errc() || end != text.data() + text.size()) {
      return lexer_.Error() << "expected an integer, found '" << text << "'";
    }
    lexer_.Next();
    return value;
  }
  absl::StatusOr<std::string> ParseWord(std::string_view what) {
    if (lexer_.peek().kind != Token::Kind::kWord)
      return lexer_.Error() << "expected " << what << ", found '" << lexer_.peek().text << "'";
    return lexer_.Next().text;
  }

  absl::StatusOr<Graph> ParseGraphDefinition();
  absl::StatusOr<Mesh> ParseMesh();
  absl::StatusOr<TensorType> ParseType();
  absl::StatusOr<PlacementMap> ParsePlacements();
  absl::Status ParseInput(Graph& graph, Scope& scope);
  absl::StatusOr<Setting> ParseSetting();
  absl::StatusOr<ResultDecl> ParseResultDecl();
  absl::Status ParseNode(Graph& graph, Scope& scope);
  absl::Status ParseReturn(Graph& graph, const Scope& scope, const std::vector<ResultDecl>& decls);
  absl::StatusOr<Value> ParseUse(const Scope& scope);
  absl::Status ParseAttributes(NodeSpec& spec, const Scope& scope);
  absl::StatusOr<Attribute> ParseAttribute(NodeSpec& spec, const Scope& scope);
  absl::StatusOr<Attribute> ParseNumber();
  absl::StatusOr<Tensor> ParseTensor();
  template <typename T>
  absl::Status ParseElement(T& element);

  // Limits on the resources that a short text can take: nested graphs take stack, and equal elements that are written
  // once take memory.
  static constexpr int kMaxDepth = 16;
  static constexpr size_t kMaxRepeatedBytes = size_t{1} << 30;

  Lexer lexer_;
  int depth_ = 0;              // nesting depth of the graph that is being parsed
  size_t repeated_bytes_ = 0;  // total size of the constants so far whose elements are written once
};

absl::StatusOr<Mesh> Parser::ParseMesh() {
  RETURN_IF_ERROR(Expect("{"));
  std::vector<MeshAxis> axes;
  while (!Accept("}")) {
    if (!axes.empty()) RETURN_IF_ERROR(Expect(","));
    MeshAxis axis;
    ASSIGN_OR_RETURN(axis.name, ParseWord("the name of a mesh axis"));
    RETURN_IF_ERROR(Expect("="));
    ASSIGN_OR_RETURN(axis.size, ParseInt());
    if (axis.size < 1)
      return lexer_.Error() << "mesh axis " << axis.name << " has size " << axis.size << ", expected at least 1";
    axes.push_back(std::move(axis));
  }
  return Mesh(std::move(axes));
}

absl::StatusOr<TensorType> Parser::ParseType() {
  ASSIGN_OR_RETURN(const std::string word, ParseWord("a type"));
  const std::optional<DType> dtype = DTypeFromName(word);
  if (!dtype) return lexer_.Error() << "expected a dtype, found '" << word << "'";
  RETURN_IF_ERROR(Expect("["));
  std::vector<int64_t> dims;
  while (!Accept("]")) {
    if (!dims.empty()) RETURN_IF_ERROR(Expect(","));
    ASSIGN_OR_RETURN(const int64_t dim, ParseInt());
    if (dim < 0) return lexer_.Error() << "negative extent " << dim;
    dims.push_back(dim);
  }
  TensorType type{*dtype, Shape(std::move(dims))};
  if (!IsAddressable(type)) return lexer_.Error() << type << " is too large to address";
  return type;
}

// `split(0)`, `split(1, model)`, `partial(sum)`, `local`, `local(model)`, `at(2, stage)`, one for each axis.
absl::StatusOr<PlacementMap> Parser::ParsePlacements() {
  PlacementMap placements;
  while (lexer_.peek().Is("split") || lexer_.peek().Is("partial") || lexer_.peek().Is("local") ||
         lexer_.peek().Is("at")) {
    const std::string kind = lexer_.Next().text;
    Placement placement = Placement::Local();
    std::string axis(kDataAxis);
    if (kind == "local") {
      if (Accept("(")) {
        ASSIGN_OR_RETURN(axis, ParseWord("a mesh axis"));
        RETURN_IF_ERROR(Expect(")"));
      }
    } else {
      RETURN_IF_ERROR(Expect("("));
      if (kind == "split" || kind == "at") {
        ASSIGN_OR_RETURN(const int64_t number, ParseInt());
        placement = kind == "split" ? Placement::Split(number) : Placement::At(number);
      } else {
        ASSIGN_OR_RETURN(const std::string name, ParseWord("a kind of reduction"));
        const std::optional<ReduceKind> reduce = ReduceKindFromName(name);
        if (!reduce) return lexer_.Error() << "unknown kind of reduction '" << name << "'";
        placement = Placement::Partial(*reduce);
      }
      if (Accept(",")) {
        ASSIGN_OR_RETURN(axis, ParseWord("a mesh axis"));
      }
      RETURN_IF_ERROR(Expect(")"));
    }
    if (!placements.emplace(axis, placement).second) return lexer_.Error() << "two placements along axis " << axis;
  }
  return placements;
}

// `in [0.0, inf) = 0.1`
absl::StatusOr<Setting> Parser::ParseSetting() {
  Setting setting;
  RETURN_IF_ERROR(Expect("in"));
  setting.range.includes_low = Accept("[");
  if (!setting.range.includes_low) RETURN_IF_ERROR(Expect("("));
  RETURN_IF_ERROR(ParseElement(setting.range.low));
  RETURN_IF_ERROR(Expect(","));
  RETURN_IF_ERROR(ParseElement(setting.range.high));
  setting.range.includes_high = Accept("]");
  if (!setting.range.includes_high) RETURN_IF_ERROR(Expect(")"));
  RETURN_IF_ERROR(Expect("="));
  RETURN_IF_ERROR(ParseElement(setting.value));
  return setting;
}

absl::Status Parser::ParseInput(Graph& graph, Scope& scope) {
  const size_t here = lexer_.peek().offset;
  const bool is_state = Accept("state");
  const bool is_setting = !is_state && Accept("setting");
  RETURN_IF_ERROR(Expect("%"));
  ASSIGN_OR_RETURN(const std::string name, lexer_.NextName());
  RETURN_IF_ERROR(Expect(":"));
  ASSIGN_OR_RETURN(const TensorType type, ParseType());
  ASSIGN_OR_RETURN(const PlacementMap placements, ParsePlacements());
  absl::StatusOr<Value> value;
  if (is_setting) {
    ASSIGN_OR_RETURN(const Setting setting, ParseSetting());
    if (type != TensorType{DType::kF64, Shape()} || !placements.empty())
      return lexer_.Error(here) << "setting %" << name << " is not a replicated f64[]";
    value = graph.AddSetting(name, setting);
  } else {
    value = graph.AddInput(name, type, is_state, placements);
  }
  if (!value.ok()) return lexer_.Error() << value.status().message();
  scope[name] = *value;
  return absl::OkStatus();
}

absl::StatusOr<Parser::ResultDecl> Parser::ParseResultDecl() {
  ResultDecl decl;
  decl.is_state = Accept("%");
  ASSIGN_OR_RETURN(decl.name, lexer_.NextName());
  RETURN_IF_ERROR(Expect(":"));
  ASSIGN_OR_RETURN(decl.type, ParseType());
  ASSIGN_OR_RETURN(decl.placements, ParsePlacements());
  return decl;
}

absl::StatusOr<Graph> Parser::ParseGraphDefinition() {
  Mesh mesh;
  if (Accept("mesh")) {
    ASSIGN_OR_RETURN(mesh, ParseMesh());
  }
  const bool is_local = Accept("local");
  RETURN_IF_ERROR(Expect("graph"));
  RETURN_IF_ERROR(Expect("@"));
  ASSIGN_OR_RETURN(const std::string name, lexer_.NextName());
  Graph graph(name);
  if (is_local && mesh.empty()) return lexer_.Error() << "a local graph needs a mesh";
  graph.set_mesh(std::move(mesh), is_local);
  Scope scope;
  RETURN_IF_ERROR(Expect("("));
  while (!Accept(")")) {
    if (!graph.inputs().empty()) RETURN_IF_ERROR(Expect(","));
    RETURN_IF_ERROR(ParseInput(graph, scope));
  }
  RETURN_IF_ERROR(Expect("->"));
  RETURN_IF_ERROR(Expect("("));
  std::vector<ResultDecl> decls;
  while (!Accept(")")) {
    if (!decls.empty()) RETURN_IF_ERROR(Expect(","));
    ASSIGN_OR_RETURN(ResultDecl decl, ParseResultDecl());
    decls.push_back(std::move(decl));
  }
  RETURN_IF_ERROR(Expect("{"));
  while (!lexer_.peek().Is("return")) RETURN_IF_ERROR(ParseNode(graph, scope));
  RETURN_IF_ERROR(ParseReturn(graph, scope, decls));
  RETURN_IF_ERROR(Expect("}"));
  return graph;
}

absl::StatusOr<Value> Parser::ParseUse(const Scope& scope) {
  RETURN_IF_ERROR(Expect("%"));
  const size_t here = lexer_.peek().offset;
  ASSIGN_OR_RETURN(const std::string name, lexer_.NextName());
  const auto it = scope.find(name);
  if (it == scope.end()) return lexer_.Error(here) << "%" << name << " is not defined here";
  return it->second;
}

absl::Status Parser::ParseNode(Graph& graph, Scope& scope) {
  const size_t here = lexer_.peek().offset;
  NodeSpec spec;
  do {
    RETURN_IF_ERROR(Expect("%"));
    ASSIGN_OR_RETURN(std::string name, lexer_.NextName());
    if (scope.contains(name)) return lexer_.Error(here) << "%" << name << " is defined twice";
    spec.names.push_back(std::move(name));
  } while (Accept(","));
  RETURN_IF_ERROR(Expect("="));
  ASSIGN_OR_RETURN(const std::string op_name, ParseWord("the name of an op"));
  spec.op = FindOp(op_name);
  if (!spec.op) return lexer_.Error(here) << "unknown op '" << op_name << "'";
  while (lexer_.peek().Is("%")) {
    ASSIGN_OR_RETURN(const Value operand, ParseUse(scope));
    spec.operands.push_back(operand);
    if (!Accept(",")) break;
  }
  RETURN_IF_ERROR(ParseAttributes(spec, scope));
  RETURN_IF_ERROR(Expect(":"));
  std::vector<TensorType> types;
  do {
    ASSIGN_OR_RETURN(TensorType type, ParseType());
    types.push_back(std::move(type));
    ASSIGN_OR_RETURN(PlacementMap placements, ParsePlacements());
    spec.placements.push_back(std::move(placements));
  } while (Accept(","));
  if (Accept("@")) {
    if (lexer_.peek().kind != Token::Kind::kString) return lexer_.Error() << "expected a source in quotes";
    spec.source = lexer_.Next().text;
  }
  const std::vector<std::string> names = spec.names;
  const absl::StatusOr<Node*> node = graph.Insert(std::move(spec));
  if (!node.ok()) return lexer_.Error(here) << node.status().message();
  if ((*node)->num_results() != names.size() || types.size() != names.size()) {
    return lexer_.Error(here) << op_name << " has " << (*node)->num_results() << " results; " << names.size()
                              << " names and " << types.size() << " types are given";
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if ((*node)->type(i) != types[i]) {
      return lexer_.Error(here) << "%" << names[i] << " has type " << (*node)->type(i) << ", but " << types[i]
                                << " is written";
    }
    scope[names[i]] = (*node)->result(i);
  }
  return absl::OkStatus();
}

absl::Status Parser::ParseReturn(Graph& graph, const Scope& scope, const std::vector<ResultDecl>& decls) {
  RETURN_IF_ERROR(Expect("return"));
  for (size_t i = 0; i < decls.size(); ++i) {
    if (i > 0) RETURN_IF_ERROR(Expect(","));
    const size_t here = lexer_.peek().offset;
    ASSIGN_OR_RETURN(const Value value, ParseUse(scope));
    const ResultDecl& decl = decls[i];
    if (value.type() != decl.type) {
      return lexer_.Error(here) << "result " << decl.name << " is declared " << decl.type << ", but %" << value.name()
                                << " has type " << value.type();
    }
    const absl::Status added = decl.is_state ? graph.AddStateResult(decl.name, value, decl.placements)
                                             : graph.AddResult(decl.name, value, decl.placements);
    if (!added.ok()) return lexer_.Error(here) << added.message();
  }
  return absl::OkStatus();
}

// Operands that are values of attributes are appended to spec.operands, after the op's own.
absl::Status Parser::ParseAttributes(NodeSpec& spec, const Scope& scope) {
  if (!Accept("{")) return absl::OkStatus();
  while (!Accept("}")) {
    if (!spec.attributes.empty()) RETURN_IF_ERROR(Expect(","));
    ASSIGN_OR_RETURN(const std::string name, ParseWord("the name of an attribute"));
    RETURN_IF_ERROR(Expect("="));
    ASSIGN_OR_RETURN(Attribute value, ParseAttribute(spec, scope));
    const OpDef::AttributeDef* def = spec.op->FindAttribute(name);
    // A word such as `f32` may be a dtype or a string; the op's definition of the attribute decides.
    if (def && std::holds_alternative<std::string>(def->example) && std::holds_alternative<DType>(value)) {
      value = std::string(DTypeName(std::get<DType>(value)));
    }
    if (!spec.attributes.emplace(name, std::move(value)).second)
      return lexer_.Error() << "attribute " << name << " is given twice";
  }
  return absl::OkStatus();
}

absl::StatusOr<Attribute> Parser::ParseAttribute(NodeSpec& spec, const Scope& scope) {
  const Token& token = lexer_.peek();
  if (token.Is("%")) {
    ASSIGN_OR_RETURN(const Value operand, ParseUse(scope));
    spec.operands.push_back(operand);
    return Attribute(OperandRef{static_cast<int64_t>(spec.operands.size()) - 1});
  }
  if (token.kind == Token::Kind::kString) return Attribute(lexer_.Next().text);
  if (token.Is("graph") || token.Is("mesh")) {
    if (depth_ == kMaxDepth) return lexer_.Error() << "more than " << kMaxDepth << " nested graphs";
    ++depth_;
    ASSIGN_OR_RETURN(Graph graph, ParseGraphDefinition());
    --depth_;
    return Attribute(Region(std::move(graph)));
  }
  if (token.Is("dense")) {
    ASSIGN_OR_RETURN(Tensor tensor, ParseTensor());
    return Attribute(std::move(tensor));
  }
  if (Accept("[")) {
    std::vector<int64_t> list;
    while (!Accept("]")) {
      if (!list.empty()) RETURN_IF_ERROR(Expect(","));
      ASSIGN_OR_RETURN(const int64_t value, ParseInt());
      list.push_back(value);
    }
    return Attribute(std::move(list));
  }
  if (token.kind == Token::Kind::kNumber || token.Is("nan") || token.Is("inf")) return ParseNumber();
  ASSIGN_OR_RETURN(const std::string word, ParseWord("the value of an attribute"));
  if (word == "true" || word == "false") return Attribute(word == "true");
  if (const std::optional<DType> dtype = DTypeFromName(word)) return Attribute(*dtype);
  return Attribute(word);
}

absl::StatusOr<Attribute> Parser::ParseNumber() {
  const std::string text = lexer_.peek().text;
  if (text.find_first_of(".eEni") != std::string::npos) {
    double value = 0;
    RETURN_IF_ERROR(ParseElement(value));
    return Attribute(value);
  }
  ASSIGN_OR_RETURN(const int64_t value, ParseInt());
  if (!Accept("/")) return Attribute(value);
  ASSIGN_OR_RETURN(const int64_t divisor, ParseInt());
  if (divisor == 0) return lexer_.Error() << "division by zero";
  return Attribute(static_cast<double>(value) / static_cast<double>(divisor));
}

template <typename T>
absl::Status Parser::ParseElement(T& element) {
  const Token& token = lexer_.peek();
  if constexpr (std::is_same_v<T, bool>) {
    if (!token.Is("true") && !token.Is("false"))
      return lexer_.Error() << "expected true or false, found '" << token.text << "'";
    element = token.Is("true");
  } else {
    // The shortest decimal text of a float reads back exactly. 16-bit floats are read as float, which represents them
    // exactly.
    using Parsed = std::conditional_t<std::is_integral_v<T> || std::is_same_v<T, double>, T, float>;
    Parsed value{};
    const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
    if (token.kind == Token::Kind::kString || error != std::errc() || end != token.text.data() + token.text.size()) {
      return lexer_.Error() << "expected a number of type " << DTypeOf<T>() << ", found '" << token.text << "'";
    }
    element = T(value);
  }
  lexer_.Next();
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Parser::ParseTensor() {
  RETURN_IF_ERROR(Expect("dense"));
  RETURN_IF_ERROR(Expect("<"));
  ASSIGN_OR_RETURN(const TensorType type, ParseType());
  RETURN_IF_ERROR(Expect(":"));
  // The tensor is allocated after its elements are read, so that the length of the text bounds the memory.
  Tensor tensor;
  RETURN_IF_ERROR(DispatchDType(type.dtype, [&](auto tag) -> absl::Status {
    using T = typename decltype(tag)::type;
    const auto size = static_cast<size_t>(type.num_elements());
    std::vector<std::conditional_t<std::is_same_v<T, bool>, char, T>> elements;
    while (!lexer_.peek().Is(">")) {
      if (!elements.empty()) RETURN_IF_ERROR(Expect(","));
      if (elements.size() == size) return lexer_.Error() << "more than " << size << " elements for " << type;
      T element{};
      RETURN_IF_ERROR(ParseElement(element));
      elements.push_back(element);
    }
    if (elements.size() != size) {
      if (elements.size() != 1) return lexer_.Error() << elements.size() << " elements for " << type;
      if (type.num_bytes() > kMaxRepeatedBytes - repeated_bytes_)
        return lexer_.Error() << type << " is too large for a constant; use the op broadcast to repeat a small one";
      repeated_bytes_ += type.num_bytes();
    }
    tensor = Tensor(type);
    const std::span<T> data = tensor.mutable_data<T>();
    for (size_t i = 0; i < size; ++i) data[i] = elements[elements.size() == 1 ? 0 : i];
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(Expect(">"));
  return tensor;
}

}  // namespace

absl::StatusOr<Graph> ParseGraph(std::string_view text) {
  const size_t invalid = FindInvalidText(text);
  if (invalid == std::string_view::npos) return Parser(text).ParseAll();
  return Lexer(text).Error(invalid) << "a byte that is not valid text (UTF-8 without NUL)";
}

}  // namespace lockstep
