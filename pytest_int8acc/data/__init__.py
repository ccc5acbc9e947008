"""Reads inputs, labels and calibration samples, checks them against the model, and cuts them into batches.

Which axis is the batch axis follows from the model's inputs alone:

1. An input is *batched* if its first dimension is symbolic or unknown. If such first dimensions have
   different names, no input is batched. If no first dimension is symbolic, all inputs of rank 1 and more are
   batched if their first dimensions are equal. Otherwise no input is batched.
2. Batched inputs share axis 0: their arrays have equally many rows, and a row is one *sample*. A *feed* is
   one array for each input. If the model fixes its batch size, rows of consecutive feeds are joined into
   batches. The last batch may be too short: then its last row is repeated, and :class:`Batch` counts the real
   rows. If the batch size is symbolic, no batch is padded. Feeds with different sizes on other axes are never
   joined.
3. An input that is not batched gets one array for each run. A stored array that has exactly the input's rank
   is given to every run. If no input is batched, one feed is one sample, and feeds are neither cut nor
   joined.
4. A stored array has the input's rank, with samples on axis 0. If it has one axis more, its axis 0 counts
   feeds.

Files are read without pickle. A loader script is user code: it is run again for each pass over the data.
"""

from pytest_int8acc.data.dataset import Batch, Dataset, open_dataset
from pytest_int8acc.data.labels import load_labels
from pytest_int8acc.data.sources import RandomSource

__all__ = ["Batch", "Dataset", "RandomSource", "load_labels", "open_dataset"]
