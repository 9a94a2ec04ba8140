// A library's handle, which all kernels of a program share, because it is slow to create and takes memory. One thread
// at a time may use it.

#pragma once

#include "core/status.h"

namespace lockstep::cuda {

// `Api` is the library's table, with Create, Destroy and Check; `kFind` finds the table.
template <typename Api, typename Handle, absl::StatusOr<const Api*> (*kFind)()>
class LibraryHandle {
 public:
  // `create` is the name of the creating function in messages ("cudnnCreate"). Nothing is opened before Open().
  explicit LibraryHandle(const char* create) : create_(create) {}
  ~LibraryHandle() {
    if (handle_ != nullptr) (void)api_->Destroy(handle_);
  }
  LibraryHandle(const LibraryHandle&) = delete;
  LibraryHandle& operator=(const LibraryHandle&) = delete;

  // Finds the library and creates the handle at the first call. The GPU's context must be current on the calling
  // thread.
  absl::Status Open() {
    if (handle_ != nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(api_, kFind());
    return api_->Check(api_->Create(&handle_), create_);
  }
  // Both require that Open() returned OK.
  const Api& api() const { return *api_; }
  Handle handle() const { return handle_; }

 private:
  const char* const create_;
  const Api* api_ = nullptr;
  Handle handle_ = nullptr;
};

}  // namespace lockstep::cuda
