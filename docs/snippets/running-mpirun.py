import subprocess
import sys

from viakit.launch import mpi_agent
from viakit.launch import mpi_library as mpi
from viakit.testbed import Testbed

if __name__ == "__main__":
    with Testbed(hosts=2) as testbed, mpi_agent(testbed) as agent:
        command = agent.command(mpi.find("mpi:mpich"), 2, [sys.executable, "prog.py"])  # two ranks on each host
        subprocess.run(command, check=True)
