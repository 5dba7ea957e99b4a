"""A child process as the fork server sees it: its fork, pipes and files. It serves one attempt at a time."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from worker_service.base import directories
from worker_service.base.forks import fork_process
from worker_service.runner.child import ChildSpec, HandlerLoader, run_child
from worker_service.runner.handler_probe import LoadedHandler
from worker_service.runner.log_lines import OutputLines
from worker_service.runner.messages import Begin, Ended, Launch
from worker_service.runner.protocol import FRAME_BYTES_MAX, Inbox, check_files, check_paths, wrap_frame
from worker_service.runner.sandbox import FULL_SANDBOX

if TYPE_CHECKING:
    from worker_service.runner.attempt import RunningAttempt

READ_BYTES = 1 << 16


class ForkedChild:
    def __init__(
        self,
        number: int,
        home: Path,
        launch: Launch,
        begin: Begin,
        handler: LoadedHandler,
        reuse: int,
    ) -> None:
        self.number = number
        self.job_type = launch.order.job_type
        self.job_class = handler.described.facts.job_class
        self.attempts_left = reuse
        self.home = home
        """Contains the staging directory. Only the fork server can write it."""
        self.inbox = Inbox(FRAME_BYTES_MAX)
        self.output_lines = OutputLines()
        self.unsent = bytearray()
        self.is_watched = False
        self.attempt: RunningAttempt | None = None
        self.served = 0
        self.sandbox = ""
        self.idle_since = 0.0
        self.cpu_seconds = 0.0
        self.was_full = False
        """The last read filled the buffer, so more may wait."""
        self._begun = mmap.mmap(-1, 8) if reuse > 1 else None
        self._staging = os.open(self.staging, directories.OPEN_DIRECTORY)
        try:
            self._fork(launch, begin, handler.loader)
        except BaseException:
            os.close(self._staging)
            raise
        self.pid_started = 0
        self.pipes = (self.messages, self.output)
        self.open_pipes = {*self.pipes}

    def _fork(self, launch: Launch, begin: Begin, loader: HandlerLoader | None) -> None:
        assert loader is not None
        with contextlib.ExitStack() as near, contextlib.ExitStack() as far:
            ends = []
            for does_it_write in (True, True, False):
                reading, writing = os.pipe()
                ours, its = (reading, writing) if does_it_write else (writing, reading)
                near.callback(os.close, ours)
                far.callback(os.close, its)
                os.set_blocking(ours, False)
                ends.append((ours, its))
            (self.messages, messages), (self.output, output), (self.answers, answers) = ends
            spec = ChildSpec(
                launch=launch,
                begin=begin,
                number=self.number,
                staging=self.staging,
                attempts=self.attempts_left,
                messages=messages,
                output=output,
                answers=answers,
                begun=self._begun,
            )
            self.pid = fork_process(lambda: run_child(spec, loader))
            near.pop_all()

    @property
    def staging(self) -> Path:
        return self.home / "staging"

    @property
    def is_home_empty(self) -> bool:
        """True if the staging directory is empty and still the original one."""
        with contextlib.suppress(OSError):
            is_the_same = os.path.samestat(os.fstat(self._staging), self.staging.lstat())
            return is_the_same and self.sandbox == FULL_SANDBOX and not os.listdir(self._staging)  # noqa: PTH208
        return False

    def move_files(self, ended: Ended, place: Path) -> None:
        """Move the files to publish to where no process can replace them, and check them there."""
        check_paths(ended)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        try:
            with directories.open_nested_folder(place) as target:
                for name in {file.path.parts[0] for file in ended.published}:
                    os.rename(name, name, src_dir_fd=self._staging, dst_dir_fd=target)
                check_files(ended, target)
        except BaseException:
            # The home directory is removed by another process, because there may be a million files.
            place.rename(self.home / "refused")
            raise

    @property
    def has_begun_order(self) -> bool:
        return self._begun is None or int.from_bytes(self._begun[:8]) == self.served

    def queue_order(self, message: bytes) -> None:
        self.unsent += wrap_frame(message)

    def send(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: os.write(self.answers, self.unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.unsent.clear()

    def read_piece(self, pipe: int) -> bytes:
        self.was_full = False
        try:
            received = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return b""
        self.was_full = len(received) == READ_BYTES
        if not received:
            self.open_pipes.discard(pipe)
        return received

    def close(self) -> None:
        for descriptor in (*self.pipes, self.answers, self._staging):
            os.close(descriptor)
