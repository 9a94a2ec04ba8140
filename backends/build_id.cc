#include "backends/build_id.h"

#include <link.h>

#include <cstdint>
#include <cstring>

namespace lockstep {
namespace {

constexpr size_t AlignTo4(size_t size) { return (size + 3) / 4 * 4; }

// Returns the build id among the ELF notes of one segment; empty if there is none.
std::string BuildIdIn(const char* notes, size_t size) {
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes + at, sizeof(header));
    const size_t name = at + sizeof(header), content = name + AlignTo4(header.n_namesz);
    at = content + AlignTo4(header.n_descsz);
    if (at > size) break;
    if (header.n_type != NT_GNU_BUILD_ID || std::string(notes + name, header.n_namesz) != std::string("GNU", 4))
      continue;
    std::string text;
    for (size_t i = 0; i < header.n_descsz; ++i) {
      const auto byte = static_cast<unsigned char>(notes[content + i]);
      text += "0123456789abcdef"[byte / 16];
      text += "0123456789abcdef"[byte % 16];
    }
    return text;
  }
  return "";
}

// Reads the build id of the object that contains BuildId().
int FindOwn(dl_phdr_info* info, size_t, void* result) {
  const auto self = reinterpret_cast<uintptr_t>(&BuildId);
  bool is_own = false;
  std::string id;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD) is_own = is_own || (self >= begin && self - begin < header.p_memsz);
    if (header.p_type == PT_NOTE && id.empty()) id = BuildIdIn(reinterpret_cast<const char*>(begin), header.p_memsz);
  }
  if (!is_own) return 0;
  *static_cast<std::string*>(result) = id;
  return 1;  // stops the iteration
}

}  // namespace

std::string BuildId() {
  std::string id;
  dl_iterate_phdr(&FindOwn, &id);
  return id.empty() ? "unknown" : id;
}

}  // namespace lockstep
