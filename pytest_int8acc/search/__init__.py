"""wip"""

from pytest_int8acc.search.evaluator import *
from pytest_int8acc.search.evaluator import square_vectors, cosine_vectors, Evaluator
from pytest_int8acc.search.types import *
