import os
import subprocess
import sys

from viakit import via

with via.Nic("loop"):
    subprocess.run([sys.executable, "-m", "viakit", "inspect", str(os.getpid())], check=True)
