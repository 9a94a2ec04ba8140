// Descriptors of the fake cuDNN: the attributes of each kind, their types and counts, and their values. Callers hold
// the mutex of cudnn.cc.

#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "test/fake_cuda/fake_cudnn.h"

namespace lockstep::cuda {

struct FakeDescriptor {
  struct Attribute {
    std::vector<std::byte> bytes;
    std::vector<std::shared_ptr<const FakeDescriptor>> descriptors;  // of CUDNN_TYPE_BACKEND_DESCRIPTOR
  };

  cudnnBackendDescriptorType_t type;
  bool is_final = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes = {};
  FakeEngine engine = {};  // of an engine, its configuration and their plan

  // The values of an attribute of a final descriptor.
  template <typename T>
  std::vector<T> All(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.bytes.size() / sizeof(T));
    std::memcpy(values.data(), found->second.bytes.data(), values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  T One(cudnnBackendAttributeName_t name, T if_absent = {}) const {
    const std::vector<T> values = All<T>(name);
    return values.empty() ? if_absent : values[0];
  }
  const FakeDescriptor& Of(cudnnBackendAttributeName_t name) const { return *attributes.at(name).descriptors[0]; }
};

// Bytes of an element; 0 for a type that the fake does not know.
size_t BytesOf(cudnnBackendAttributeType_t type);

// Returns what is wrong with setting the attribute to `count` elements of `type`, or "". If `type` is that of
// descriptors, `descriptors` are the pointees, null for unknown ones.
std::string CheckAttribute(const FakeDescriptor& descriptor, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t count,
                           const std::vector<std::shared_ptr<FakeDescriptor>>& descriptors);

// Returns what is missing or does not fit together, or "" if the descriptor can be made final.
std::string CheckFinal(const FakeDescriptor& descriptor);

}  // namespace lockstep::cuda
