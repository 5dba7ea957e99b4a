"""What is no longer wanted: documents by a person's wish, and what nobody refers to any more by a chore.

A page result that no page refers to is first marked, and from then on is not known to handlers that ask. It is removed
once every attempt that may have asked before has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker_service.errors import Refused
from worker_service.store.sqlite_connection import Connections


class Forgetting(Connections):
    def delete_documents(self, document_ids: Sequence[int]) -> int:
        with self._transaction():
            for document_id in document_ids:
                for (job_id,) in self._write("any_live_job", document_id=document_id):
                    raise Refused(f"job {job_id} still works for document {document_id}: cancel it first")
            return sum(len(self._write("delete_document", document_id=each)) for each in dict.fromkeys(document_ids))

    def forget_pages(self, most: int = 1000) -> int:
        # Looked for by the reader, so that nobody waits meanwhile; looked at again under the write lock.
        generations = self._read("old_generations", most=most)
        files = self._read("superseded_files", most=most)
        with self._transaction():
            forgotten = 0
            for document_id, generation in generations:
                if forgotten < most:
                    left = {"document_id": document_id, "generation": generation, "most": most - forgotten}
                    forgotten += len(self._write("forget_page", **left))
            forgotten += sum(len(self._write("forget_file", file_id=file_id)) for (file_id,) in files)
            self._write("date_forgotten", now=self._now())
            return forgotten + len(self._write("forget_result", most=most))

    def gone_files(self, most: int = 1000) -> Sequence[str]:
        return [path for (path,) in self._read("gone_files", most=most)]

    def forget_gone_files(self, paths: Sequence[str]) -> None:
        with self._transaction():
            self._write_each("forget_gone_file", [(path,) for path in paths])
