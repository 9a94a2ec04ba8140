"""`lockstep launch`: starts a job of workers and servers, locally, by ssh, Slurm or Grid Engine, or on Kubernetes.

`command.py` makes a `Job` (`job.py`) from the arguments. For each launcher there is a file, such as `ssh.py`, which
returns a `Plan`: the commands and files that would start the job. `--dry-run` prints the plan, and `start.py` runs it.
mpirun, or `starter.py` without MPI, starts `rank.py` on the hosts, and `guard.py` ends the job if the launcher is
killed. `elastic.py` is `lockstep elastic`, which restarts a job on the remaining hosts. Both run mpirun by
`supervise.py`.
"""
