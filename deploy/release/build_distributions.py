"""Build wheels and sdists of the application and the client from the current commit, and check their contents.

``make release`` runs this with the build tools' Python. Sources come from the commit, not from the working tree, and
files have the commit's time, so that two builds of a commit are equal.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from distribution_contents import APPLICATION, CLIENT, contents_problems, read_names, shipped_files
from release_source import NotReleasable, check_commit, git, read_version, release_notes


def build_distributions(root: Path, out: Path) -> list[Path]:
    """Build the distributions of a clean commit, write the release notes, and return all files.

    Args:
        root: Folder of the repository.
        out: Folder for the files; it must be empty or missing.

    Raises:
        NotReleasable: The commit cannot be released, or a distribution has wrong contents.
    """
    version = read_version(root)
    check_commit(root, version)
    notes = release_notes((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if out.exists() and any(out.iterdir()):
        raise NotReleasable(f"{out} is not empty. Remove it, or name another folder: make release OUT=FOLDER")
    time = int(git(root, "log", "-1", "--format=%ct"))
    tracked = git(root, "ls-files").splitlines()
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        _export(root, source)
        shutil.copy(source / "LICENSE", source / "clients/python")  # the client's wheel includes it too
        for folder, packages in ((source, APPLICATION), (source / "clients/python", CLIENT)):
            built = source / "built"
            _build(folder, built, time)
            shipped = shipped_files(tracked, packages)
            for archive in sorted(built.iterdir()):
                problems = contents_problems(read_names(archive), shipped)
                if problems:
                    raise NotReleasable(f"{archive.name}: {' '.join(problems[:5])}")
                out.mkdir(parents=True, exist_ok=True)
                shutil.move(archive, out)
    (out / "RELEASE_NOTES.md").write_text(notes, encoding="utf-8")
    return sorted(out.iterdir())


def _export(root: Path, target: Path) -> None:
    """Write the commit's files to a folder."""
    archive = target / "source.tar"
    git(root, "archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as content:
        content.extractall(target, filter="data")
    archive.unlink()


def _build(folder: Path, out: Path, time: int) -> None:
    """Build an sdist from a source folder, and a wheel from the sdist."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, folder]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReleasable(f"The build of {folder.name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    for sdist in out.glob("*.tar.gz"):
        set_times(sdist, time)


def set_times(sdist: Path, time: int) -> None:
    """Rewrite an sdist sorted, without owners and with one time, which build tools do only for wheels."""
    temporary = sdist.with_suffix(".part")
    with (
        tarfile.open(sdist) as content,
        temporary.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=time) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in sorted(content.getmembers(), key=lambda entry: entry.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            written.addfile(member, content.extractfile(member) if member.isfile() else None)
    temporary.replace(sdist)


def main(out: Path) -> int:
    """Build into ``out`` and print the files; the exit status is 1 if the commit cannot be released."""
    try:
        files = build_distributions(Path.cwd(), out)
    except NotReleasable as error:
        sys.stderr.write(f"Not released. {error}\n")
        return 1
    sys.stdout.write("".join(f"{file}\n" for file in files))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
