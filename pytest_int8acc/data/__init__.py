"""Inputs, labels and calibration samples: read, checked against the model, and cut into batches.

Which axis is the batch axis follows from the model's inputs alone:

1. An input is *batched* where its first dimension is symbolic or unknown; dimensions with different names are
   different axes. Where nothing is symbolic, all inputs of rank 1 and more are batched if their first
   dimensions are equal. Otherwise no input is batched.
2. Batched inputs share axis 0: their arrays have equally many rows, and a row is one *sample*. A fixed batch
   is filled with rows of consecutive feeds; the ragged rest repeats its last row and says how many rows are
   real. A symbolic batch is never padded. Feeds whose other sizes differ are never joined.
3. All other inputs belong to the run. An array of exactly the model's rank serves every run alike. Where no
   input is batched, one feed is one sample, and feeds are neither cut nor joined.
4. Stored arrays come samples first, at the model's rank; with one axis more, axis 0 counts whole feeds.

Files are read without pickle. A loader script is user code: it runs, afresh for each pass.
"""

from pytest_int8acc.data.dataset import Batch, Dataset, open_dataset
from pytest_int8acc.data.labels import load_labels
from pytest_int8acc.data.sources import RandomSource

__all__ = ["Batch", "Dataset", "RandomSource", "load_labels", "open_dataset"]
