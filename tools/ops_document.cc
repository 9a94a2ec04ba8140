#include "tools/ops_document.h"

#include "core/op_def.h"
#include "tools/gpu_ops.h"

namespace lockstep {
namespace {

std::string Joined(const std::vector<std::string>& names, bool is_variadic) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "%" : ", %") + name;
  return is_variadic ? text + ", …" : text;
}

std::string Traits(const OpDef& op) {
  std::string text;
  for (const auto& [trait, name] : AllOpTraits()) {
    if (op.has_trait(trait)) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

std::string OpSection(const OpDef& op) {
  std::string text =
      "## " + op.name() + "\n\n" + op.doc() + "\n\n```\n" + Joined(op.result_names(), false) + " = " + op.name();
  if (!op.operand_names().empty()) text += " " + Joined(op.operand_names(), op.is_variadic());
  text += "\n```\n\n";
  for (const OpDef::AttributeDef& attribute : op.attribute_defs()) {
    text += "- `" + attribute.name + "`: " + std::string(AttributeTypeName(attribute.example));
    if (!attribute.required) text += ", default `" + AttributeToString(attribute.example) + "`";
    if (!attribute.doc.empty()) text += ". " + attribute.doc;
    if (attribute.range) text += "; " + attribute.range->ToString();
    for (const std::string& choice : attribute.choices)
      text += (choice == attribute.choices.front() ? "; one of `" : ", `") + choice + "`";
    if (attribute.may_be_operand) text += "; or an operand, such as a setting";
    text += "\n";
  }
  for (const OpDef::ConstraintDef& constraint : op.constraints())
    text += "- (" + constraint.id + ") " + constraint.text + "\n";
  if (const std::string traits = Traits(op); !traits.empty()) text += "- Traits: " + traits + "\n";
  text += "- Mixed precision: " + std::string(PrecisionRuleName(op.precision())) + "\n";
  text += op.vjp() ? "- Has a gradient\n" : "- No gradient: " + op.no_gradient() + "\n";
  for (const OptimizerName& name : op.optimizer().names) text += "- Name for users: `" + name.name + "`\n";
  if (op.decompose()) text += "- Decomposes into simpler ops if a target has no kernel\n";
  return text + "\n";
}

}  // namespace

std::string OpsDocument() {
  std::string text =
      "# Ops\n\n"
      "Generated from the definitions in `core/ops/` by `make docs`; do not edit. A message such as `matmul (C4): …` "
      "names the op and the\n"
      "constraint below. Elementwise ops take operands of equal shapes: there is no implicit broadcasting.\n\n";
  text += GpuOpsSection();
  for (const OpDef* op : AllOps()) text += OpSection(*op);
  text.pop_back();
  return text;
}

}  // namespace lockstep
