#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out

# A new secret for each job, by which its ranks recognise each other.
VIAKIT_SECRET=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
export VIAKIT_SECRET
srun --kill-on-bad-exit python prog.py
