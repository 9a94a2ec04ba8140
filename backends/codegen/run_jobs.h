// Distributes jobs to threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace lockstep {

// Calls `work(next)` on as many threads as the processor has, at most `jobs`. Each call takes job numbers from next()
// until one is `jobs` or more.
inline void RunJobs(size_t jobs, const std::function<void(const std::function<size_t()>& next)>& work) {
  std::atomic<size_t> taken = 0;
  const auto one = [&] { work([&] { return taken++; }); };
  std::vector<std::thread> others;
  const size_t threads = std::min<size_t>(jobs, std::max(1u, std::thread::hardware_concurrency()));
  for (size_t i = 1; i < threads; ++i) others.emplace_back(one);
  if (jobs > 0) one();
  for (std::thread& other : others) other.join();
}

}  // namespace lockstep
