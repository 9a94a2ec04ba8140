#include "runtime/comm/routes/network_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "core/status.h"
#include "runtime/cache_file.h"

namespace lockstep {
namespace {

constexpr char kHead[] =
    "# The costs of the network between these hosts, in seconds, as Lockstep measured them to choose the routes of\n"
    "# collectives. Without this file they are measured again.\n";
constexpr char kFolder[] = "/networks/", kEnding[] = ".toml";
constexpr std::pair<const char*, double NetworkCosts::*> kCosts[] = {
    {"latency", &NetworkCosts::latency},
    {"message", &NetworkCosts::message},
    {"byte_to_all", &NetworkCosts::byte_to_all},
    {"byte_to_neighbour", &NetworkCosts::byte_to_neighbour},
};

std::string HashOf(std::string_view text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

std::string CheckOf(const std::string& text) { return "check = \"" + HashOf(text) + "\"\n"; }

// Returns values by key, without quotes. Skips lines that are not assignments.
std::map<std::string, std::string> Assignments(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equal = line.find(" = ");
    if (line.starts_with("#") || equal == std::string::npos) continue;
    std::string value = line.substr(equal + 3);
    if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
    values[line.substr(0, equal)] = value;
  }
  return values;
}

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound() << "there is no " << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::string ClusterName(const std::vector<std::string>& hosts_of_ranks, const std::string& transport,
                        const std::string& interfaces) {
  std::string name;
  for (size_t r = 0; r < hosts_of_ranks.size();) {
    size_t end = r;
    while (end < hosts_of_ranks.size() && hosts_of_ranks[end] == hosts_of_ranks[r]) ++end;
    name += hosts_of_ranks[r] + "*" + std::to_string(end - r) + " ";
    r = end;
  }
  name += "by " + transport + (interfaces.empty() ? "" : " through " + interfaces);
  // Characters that cannot be in a line of the file.
  std::erase_if(name, [](unsigned char c) { return c < ' ' || c == '"' || c == '\\'; });
  return name;
}

std::string ToText(const Network& network) {
  std::string text = kHead;
  text += "format = 1\ncluster = \"" + network.cluster + "\"\nhosts = " + std::to_string(network.hosts) +
          "\nranks = " + std::to_string(network.ranks) + "\n";
  for (const auto& [key, member] : kCosts) {
    char number[32];
    std::snprintf(number, sizeof(number), "%.17g", network.costs.*member);
    text += std::string(key) + " = " + number + "\n";
  }
  return text + CheckOf(text);
}

absl::StatusOr<Network> NetworkOf(const std::string& text) {
  const size_t end = text.rfind("check = ");
  if (end == std::string::npos || text.substr(end) != CheckOf(text.substr(0, end)))
    return InvalidArgument() << "its check does not match its contents";
  std::map<std::string, std::string> values = Assignments(text.substr(0, end));
  if (values["format"] != "1") return InvalidArgument() << "its format is `" << values["format"] << "`, expected 1";
  Network network{.cluster = values["cluster"]};
  if (!absl::SimpleAtoi(values["hosts"], &network.hosts) || !absl::SimpleAtoi(values["ranks"], &network.ranks) ||
      network.hosts < 1 || network.ranks < 1)
    return InvalidArgument() << "hosts or ranks is not a positive number";
  for (const auto& [key, member] : kCosts) {
    double& cost = network.costs.*member;
    if (!absl::SimpleAtod(values[key], &cost) || !std::isfinite(cost) || cost < 0)
      return InvalidArgument() << key << " is `" << values[key] << "`, expected seconds";
  }
  return network;
}

std::string NetworkCachePath(const std::string& folder, const std::string& cluster) {
  return folder + kFolder + HashOf(cluster) + kEnding;
}

absl::StatusOr<Network> ReadNetwork(const std::string& folder, const std::string& cluster) {
  if (folder.empty()) return NotFound() << "there is no folder for it";
  const std::string path = NetworkCachePath(folder, cluster);
  ASSIGN_OR_RETURN(const std::string text, ReadAll(path));
  absl::StatusOr<Network> network = NetworkOf(text);
  if (!network.ok()) return Annotate(network.status(), path);
  if (network->cluster != cluster) return InvalidArgument() << path << ": it is of " << network->cluster;
  return network;
}

absl::Status WriteNetwork(const std::string& folder, const Network& network) {
  if (folder.empty()) return absl::OkStatus();
  return ReplaceFile(NetworkCachePath(folder, network.cluster), ToText(network));
}

std::vector<Network> KnownNetworks(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  if (!folder.empty()) {
    for (std::filesystem::directory_iterator file(folder + kFolder, error), end; !error && file != end;
         file.increment(error)) {
      if (file->path().extension() == kEnding) paths.push_back(file->path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Network> networks;
  for (const std::string& path : paths) {
    const absl::StatusOr<std::string> text = ReadAll(path);
    absl::StatusOr<Network> network = text.ok() ? NetworkOf(*text) : text.status();
    if (network.ok()) networks.push_back(*std::move(network));
  }
  return networks;
}

}  // namespace lockstep
