// Where the records of jobs lie: a folder for each job, in memory that outlives its processes, with the files of each
// of its ranks. A job is what one mpirun started, or one process without it. Any thread, of any process.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

// The folder of all jobs: LOCKSTEP_RECORD of the environment, or one of this user in /dev/shm.
std::string RootOfJobs();

// The name of this process' job: mpirun's number for it, or the process'.
std::string ThisJob();

// Makes the folder of a job. If it is new, folders of jobs whose processes have all ended are removed, but for the
// newest of them, which somebody may want to look at.
absl::Status MakeJobFolder(const std::string& root, const std::string& job);

// The names of all jobs, the newest first.
std::vector<std::string> Jobs(const std::string& root);

// The files of ranks in a folder, by name: what ends with `suffix`.
std::vector<std::string> FilesIn(const std::string& folder, const std::string& suffix);

// Whether a process of the job lives.
bool IsAlive(const std::string& folder);

}  // namespace lockstep
