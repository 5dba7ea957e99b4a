"""PDFs and images."""

from job_handlers.reading.pdf.embed import Matrix as Matrix
from job_handlers.reading.pdf.embed import PdfFont as PdfFont
from job_handlers.reading.pdf.embed import add_streams as add_streams
from job_handlers.reading.pdf.embed import pdf_of_image as pdf_of_image
from job_handlers.reading.pdf.file import PagedFile as PagedFile
from job_handlers.reading.pdf.library import LIBRARY as LIBRARY
from job_handlers.reading.pdf.library import Broken as Broken
from job_handlers.reading.pdf.library import PageTooLarge as PageTooLarge
from job_handlers.reading.pdf.library import PdfLocked as PdfLocked
from job_handlers.reading.pdf.text import PageText as PageText
