"""weft_pipeline.launch under a real mpirun, without PyTorch."""

import os
import shutil
import subprocess
import sys

import pytest
from weft_pipeline import launch

BUILD = os.environ.get("WEFT_BUILD_DIR", "build")
MPIS = [
    name
    for name in ("openmpi", "mpich")
    if os.path.exists(f"{BUILD}/lib/weft-mpi-{name}.so") and shutil.which(f"mpirun.{name}")
]

SCRIPT = """\
import os, signal, sys
from weft_pipeline import launch
launch.begin()
me = launch.info()
launch.world()
got = launch.allgather(b"rank %d" % me.rank, 60_000_000_000)
assert got == [b"rank %d" % k for k in range(me.ranks)], got
os.write(1, f"{me.launcher} {me.rank} of {me.ranks}\\n".encode())  # in one piece
if "kill" in sys.argv and me.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if "raise" in sys.argv and me.rank == 1:
    raise LookupError("no data")
launch.allgather(b"again", 60_000_000_000)
"""


def mpirun(mpi, ranks, file, *words):
    """Exit status and output of a job."""
    environment = dict(
        os.environ,
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_btl="^tcp",
        UCX_LOG_LEVEL="error",
        WEFT_MPI_DRIVER=os.path.abspath(f"{BUILD}/lib/weft-mpi-{mpi}.so"),
    )
    more = ["--oversubscribe"] if mpi == "openmpi" else []
    done = subprocess.run(
        [f"mpirun.{mpi}", *more, "-n", str(ranks), sys.executable, str(file), *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


def test_without_a_launcher():
    if launch.info().launcher is None:
        assert launch.info() == (None, 0, 1)
    with pytest.raises(TypeError):
        launch.begin(3)
    with pytest.raises(ValueError):
        launch.begin("a\0b")


def test_the_driver_is_found_by_path(tmp_path, monkeypatch):
    """Of an installed Weft or a build folder that is on PATH; never in the current folder."""
    for place in ("build/lib", "here/lib", "prefix/lib/weft"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "weft-mpi-openmpi.so").touch()
    (tmp_path / "prefix/bin").mkdir()
    for folder in ("build", "here", "prefix/bin"):
        (tmp_path / folder / "weft").touch()
    monkeypatch.chdir(tmp_path / "here")
    for path, found in (
        ("build", "build/lib"),
        ("prefix/bin", "prefix/lib/weft"),
        ("prefix", None),
    ):
        monkeypatch.setenv("PATH", os.pathsep.join(["", ".", str(tmp_path / path)]))
        expected = found and str(tmp_path / found / "weft-mpi-openmpi.so")
        assert launch._driver() == expected


def test_a_driver_that_others_can_change_is_not_taken(tmp_path, monkeypatch):
    """Nor one in a folder in which they can, also where a link leads there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/weft").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "lib/weft").mkdir(parents=True)
    driver = tmp_path / "lib/weft/weft-mpi-openmpi.so"
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    driver.touch()
    assert launch._driver() == str(driver)
    driver.chmod(0o666)
    assert launch._driver() is None
    driver.chmod(0o644)
    (tmp_path / "lib/weft").chmod(0o777)
    assert launch._driver() is None
    (tmp_path / "lib/weft").chmod(0o755)
    driver.rename(tmp_path / "open/driver.so")
    driver.symlink_to("../../open/driver.so")
    assert launch._driver() is None
    if os.geteuid() == 0:
        (tmp_path / "open").chmod(0o755)
        assert launch._driver() == str(tmp_path / "open/driver.so")
        os.chown(tmp_path / "open", 65534, 65534)
        assert launch._driver() is None


def test_all_is_well(tmp_path):
    if not MPIS:
        pytest.skip("Weft is built without MPI, or there is no mpirun")
    file = tmp_path / "job.py"
    file.write_text(SCRIPT)
    status, said = mpirun(MPIS[0], 2, file)
    assert status == 0, said
    assert f"{MPIS[0]} 0 of 2" in said and f"{MPIS[0]} 1 of 2" in said


@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_is_killed(mpi, tmp_path):
    file = tmp_path / "job.py"
    file.write_text(SCRIPT)
    status, said = mpirun(mpi, 3, file, "kill")
    assert status == 75, said
    assert "job.py: rank 1 (pid " in said and "was killed by signal 9 (SIGKILL)" in said
    assert "Traceback" not in said


def test_a_script_fails(tmp_path):
    if not MPIS:
        pytest.skip("Weft is built without MPI, or there is no mpirun")
    file = tmp_path / "job.py"
    file.write_text(SCRIPT)
    status, said = mpirun(MPIS[0], 2, file, "raise")
    assert status == 75, said
    assert said.count("LookupError: no data") == 2  # the traceback, and the report of the job
    assert "the script of rank 1 ends with LookupError: no data (job.py:12)" in said


WITHOUT_A_WORLD = """\
from weft_pipeline import UnavailableError, launch
launch.begin()
try:
    launch.world()
except UnavailableError:
    print("no world", flush=True)
"""


@pytest.mark.parametrize("mpi", MPIS)
def test_a_script_goes_on_without_a_world(mpi, tmp_path, monkeypatch):
    """Its end is none of a job, whose supervisor would report it."""
    file = tmp_path / "job.py"
    file.write_text(WITHOUT_A_WORLD)
    monkeypatch.setattr(sys.modules[__name__], "BUILD", str(tmp_path))  # which has no driver
    status, said = mpirun(mpi, 2, file)
    assert status == 0, said
    assert said.count("no world") == 2 and "exited with status" not in said


LEAVES = """\
import os, sys
from weft_pipeline import launch
launch.begin()
launch.world()
if launch.info().rank == 1:
    os._exit(int(sys.argv[1]))
launch.allgather(b"", 60_000_000_000)
"""


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("number", [0, 3])
def test_a_rank_exits(mpi, number, tmp_path):
    file = tmp_path / "job.py"
    file.write_text(LEAVES)
    status, said = mpirun(mpi, 2, file, str(number))
    assert status == 75, said
    assert f"exited with status {number}, in the middle of the job" in said
