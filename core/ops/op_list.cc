#include "core/ops/op_list.h"

#include <unordered_map>

namespace lockstep {

const std::vector<const OpDef*>& AllOps() {
#define LOCKSTEP_LIST_OP(name) &name(),
  static const std::vector<const OpDef*> ops = {LOCKSTEP_OPS(LOCKSTEP_LIST_OP)};
#undef LOCKSTEP_LIST_OP
  return ops;
}

const OpDef* FindOp(std::string_view name) {
  static const auto* by_name = [] {
    auto* map = new std::unordered_map<std::string_view, const OpDef*>();
    for (const OpDef* op : AllOps()) map->emplace(op->name(), op);
    return map;
  }();
  const auto it = by_name->find(name);
  return it == by_name->end() ? nullptr : it->second;
}

const OpDef& GetOp(std::string_view name) {
  const OpDef* op = FindOp(name);
  LOCKSTEP_CHECK(op != nullptr) << "no op " << name;
  return *op;
}

}  // namespace lockstep
