# SPDX-License-Identifier: Apache-2.0
"""The job's name: the same in all processes of a run on a node, and different for each run."""
import os


def run_name(environ=os.environ):
    """The launcher's name for the run, as libstoker would find it too, or None: there is no launcher."""
    return job_name(environ) or environ.get("TORCHELASTIC_RUN_ID") or ".".join(
        filter(None, (environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")))) or None


def job_name(environ=os.environ):
    """None: libstoker finds it (torchrun's run id, Slurm's job and step) or the process is alone."""
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        return None
    # Without a rendezvous torchrun calls every run "none"; its port is one run's at a time.
    if environ.get("MASTER_PORT") and (run or environ.get("RANK")):
        return f"{environ.get('MASTER_ADDR', 'local')}-{environ['MASTER_PORT']}"
    if environ.get("SLURM_JOB_ID"):
        return None
    for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"):
        if environ.get(name):
            return environ[name]
    return None
