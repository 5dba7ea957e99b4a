"""Read documents: text layers, OCR, spreadsheets and flowing text."""
