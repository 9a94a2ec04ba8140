"""`lockstep launch`: starts a job of workers and perhaps servers, here, by mpirun and ssh, by Slurm or Grid Engine, or on Kubernetes.

`command.py` reads the arguments and makes a `Job` (`job.py`) of them. A file for each launcher, such as `ssh.py`, says what would start it, as a `Plan`: commands and
files, as text, which `--dry-run` prints. `start.py` carries it out. `rank.py` is what mpirun starts on the hosts, and
`guard.py` what ends the job of a launcher that was killed. `elastic.py` is `lockstep elastic`, which starts a job again
on the hosts that are left; `supervise.py` runs mpirun for both.
"""
