// The location of the records of jobs: a folder for each job, in memory that outlives its processes, with the files of
// its ranks. A job is the set of processes that one mpirun started, or that met without it, or a single process. Any
// thread, of any process.

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

// Returns the folder of all jobs: LOCKSTEP_RECORD from the environment, or a folder of this user in /dev/shm.
std::string RootOfJobs();

// Returns the name of this process's job: mpirun's number of the job, or else the name that was given to it, or else
// the number of the process.
std::string ThisJob();

// Gives this process's job a name, the same on all of its ranks. The first call counts.
void NameThisJob(const std::string& name);

// Creates the folder of a job. If it is new, removes the folders of jobs whose processes have all ended, except the
// newest of them, which a user may still want to read.
absl::Status MakeJobFolder(const std::string& root, const std::string& job);

// Returns the names of all jobs, the newest first.
std::vector<std::string> Jobs(const std::string& root);

// Returns the files of ranks in a folder, by name: those whose names end with `suffix`.
std::vector<std::string> FilesIn(const std::string& folder, const std::string& suffix);

// Returns true if a process of the job is alive.
bool IsAlive(const std::string& folder);

}  // namespace lockstep
