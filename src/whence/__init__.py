"""whence."""
from whence.outcomes import Outcomes
from whence.designs import *
from whence.surrogates.choose import fit, Model
from whence.surrogates.kernel import KernelSurrogate, CombinedSurrogate
from whence.surrogates.additive import AdditiveSurrogate
