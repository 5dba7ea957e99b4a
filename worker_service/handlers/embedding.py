"""The names that the handler of the job type `embed` imports."""

from worker_service.jobs.documents import DocumentsToEmbed as DocumentsToEmbed
from worker_service.jobs.documents import KnownVectors as KnownVectors
from worker_service.jobs.documents import PagesToEmbed as PagesToEmbed
from worker_service.jobs.embeddings import EMBED as EMBED
from worker_service.jobs.embeddings import Embeddings as Embeddings
from worker_service.jobs.embeddings import PassageVectors as PassageVectors
from worker_service.jobs.page_structure import STRUCTURED_PAGES_MAX as STRUCTURED_PAGES_MAX
from worker_service.jobs.page_structure import structure_of as structure_of
from worker_service.jobs.passages import Passage as Passage
from worker_service.jobs.passages import PassageLimits as PassageLimits
from worker_service.jobs.passages import passages_of as passages_of
