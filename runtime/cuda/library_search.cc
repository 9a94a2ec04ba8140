#include "runtime/cuda/library_search.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lockstep::cuda {
namespace {

namespace fs = std::filesystem;

constexpr char kPathVariable[] = "LOCKSTEP_CUDA_PATH";

// One of the three places, and the result of the search there.
struct Place {
  std::string name;
  std::vector<std::string> files;  // candidates, in order: paths, or names for the dynamic linker
  std::string looked_in;           // for the message
};

// Returns the folders folder/*/below, in alphabetical order.
std::vector<fs::path> FoldersBelow(const fs::path& folder, const char* below) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const fs::path candidate = at->path() / below;
    std::error_code ignored;
    if (fs::is_directory(candidate, ignored)) found.push_back(candidate);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Returns the folders of libraries for a folder of LOCKSTEP_CUDA_PATH: itself, those of a toolkit (lib64), of Python's
// packages (*/lib), or of the parent of such packages (nvidia/*/lib).
std::vector<std::string> Spread(const std::string& folder) {
  std::vector<fs::path> candidates = {folder, fs::path(folder) / "lib", fs::path(folder) / "lib64"};
  for (const fs::path& root : {fs::path(folder), fs::path(folder) / "nvidia"}) {
    const std::vector<fs::path> below = FoldersBelow(root, "lib");
    candidates.insert(candidates.end(), below.begin(), below.end());
  }
  std::vector<std::string> folders;
  for (const fs::path& candidate : candidates) {
    std::error_code ignored;
    if (fs::is_directory(candidate, ignored)) folders.push_back(candidate.string());
  }
  return folders;
}

std::vector<std::string> FilesIn(const std::vector<std::string>& folders, const std::vector<std::string>& names) {
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    for (const std::string& name : names) files.push_back((fs::path(folder) / name).string());
  }
  return files;
}

Place PlaceOfVariable(const LibrarySpec& spec, const std::optional<std::string>& value) {
  Place place = {.name = kPathVariable, .files = {}, .looked_in = "it is not set"};
  if (!value.has_value()) return place;
  std::vector<std::string> folders, texts;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(*value, ':', absl::SkipEmpty()))) {
    const std::vector<std::string> spread = Spread(entry);
    folders.insert(folders.end(), spread.begin(), spread.end());
    texts.push_back(spread.empty() ? "there is no folder " + entry : "not in " + absl::StrJoin(spread, ", "));
  }
  place.files = FilesIn(folders, spec.files);
  place.looked_in = texts.empty() ? "it is empty" : absl::StrJoin(texts, "; ");
  return place;
}

std::vector<Place> PlacesOf(const LibrarySpec& spec, const SearchPlaces& places) {
  std::vector<Place> all;
  if (places.system) {
    all.push_back({.name = "the system's folders", .files = spec.files, .looked_in = "not there"});
  }
  const std::vector<std::string>& python = places.python_folders;
  all.push_back({.name = "Python's nvidia-* packages",
                 .files = FilesIn(python, spec.files),
                 .looked_in = python.empty() ? "there are none" : "not in " + absl::StrJoin(python, ", ")});
  all.push_back(PlaceOfVariable(spec, places.cuda_path));
  return all;
}

// Opens the parts that `library` will open itself: from its folder, or from where the dynamic linker finds them.
absl::Status OpenParts(const LibrarySpec& spec, const Library& library) {
  const fs::path folder = fs::path(library.path()).parent_path();
  for (const std::string& part : spec.parts) {
    absl::Status status = Library::Open(spec.name, (folder / part).string()).status();
    if (status.code() == absl::StatusCode::kNotFound && Library::Open(spec.name, part).ok()) status = absl::OkStatus();
    if (!status.ok()) {
      return FailedPrecondition() << library.path() << " lacks " << part << ", a part of it: " << status.message();
    }
  }
  return absl::OkStatus();
}

absl::Status TryFile(const LibrarySpec& spec, const std::string& file,
                     const std::function<absl::Status(const Library&)>& accept) {
  ASSIGN_OR_RETURN(const Library library, Library::Open(spec.name, file));
  RETURN_IF_ERROR(OpenParts(spec, library));
  return Annotate(accept(library), library.path());
}

struct PythonFolders {
  std::mutex mutex;  // guards the following member
  std::vector<std::string> folders;
};

// Process-wide, like Python's installed packages and loaded libraries. Set once.
PythonFolders& FoldersOfPython() {
  static PythonFolders* const folders = new PythonFolders;
  return *folders;
}

}  // namespace

SearchPlaces PlacesOfProcess() {
  SearchPlaces places;
  PythonFolders& python = FoldersOfPython();
  const std::lock_guard<std::mutex> lock(python.mutex);
  places.python_folders = python.folders;
  if (const char* value = std::getenv(kPathVariable)) places.cuda_path = value;
  return places;
}

void SetPythonFolders(std::vector<std::string> folders) {
  PythonFolders& python = FoldersOfPython();
  const std::lock_guard<std::mutex> lock(python.mutex);
  python.folders = std::move(folders);
}

absl::Status FindLibrary(const LibrarySpec& spec, const SearchPlaces& places,
                         const std::function<absl::Status(const Library&)>& accept) {
  bool any_there = false;
  std::string report;
  for (const Place& place : PlacesOf(spec, places)) {
    std::vector<std::string> refused;
    for (const std::string& file : place.files) {
      const absl::Status status = TryFile(spec, file, accept);
      if (status.ok()) return status;
      if (status.code() != absl::StatusCode::kNotFound) refused.push_back(std::string(status.message()));
    }
    any_there |= !refused.empty();
    report += "\n  " + place.name + ": " + (refused.empty() ? place.looked_in : absl::StrJoin(refused, "; "));
  }
  ErrorStream error(any_there ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kNotFound);
  error << spec.name << " " << spec.at_least.ToString() << " or later is needed, but "
        << (any_there ? "the libraries found cannot be used" : "it was not found") << ". Looked for "
        << absl::StrJoin(spec.files, " and ") << " in" << report << "\nTo install it: " << spec.install;
  return error;
}

absl::Status CheckVersion(const LibrarySpec& spec, const Version& found) {
  if (found >= spec.at_least) return absl::OkStatus();
  return FailedPrecondition() << "it is version " << found.ToString() << ", expected " << spec.at_least.ToString()
                              << " or later";
}

}  // namespace lockstep::cuda
