// A library's handle, which all kernels of a program share: it takes long to make, and memory. One thread at a time.

#pragma once

#include "core/status.h"

namespace lockstep::cuda {

// `Api` is the library's table, with Create, Destroy and Check; `kFind` finds it.
template <typename Api, typename Handle, absl::StatusOr<const Api*> (*kFind)()>
class LibraryHandle {
 public:
  // `create` is what messages call the function that makes it ("cudnnCreate"). Nothing is opened before Open().
  explicit LibraryHandle(const char* create) : create_(create) {}
  ~LibraryHandle() {
    if (handle_ != nullptr) (void)api_->Destroy(handle_);
  }
  LibraryHandle(const LibraryHandle&) = delete;
  LibraryHandle& operator=(const LibraryHandle&) = delete;

  // Finds the library and makes the handle at the first call, in the thread whose context is that of the GPU.
  absl::Status Open() {
    if (handle_ != nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(api_, kFind());
    return api_->Check(api_->Create(&handle_), create_);
  }
  // Both require that Open() was OK.
  const Api& api() const { return *api_; }
  Handle handle() const { return handle_; }

 private:
  const char* const create_;
  const Api* api_ = nullptr;
  Handle handle_ = nullptr;
};

}  // namespace lockstep::cuda
